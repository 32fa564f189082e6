"""Shortfall: the world is formed without nodes that cannot be had, if its user said how few will do. Pure.

Who cannot be had is the launching client's to know; that nobody is left out who is here, or may still come, is seen to
here. The nodes that are here close up in their order before any rank has a number, so nobody has to be renumbered.
"""

from __future__ import annotations

from jdist.controller.membership.admission import Admission
from jdist.controller.model.model import Model
from jdist.core.messages.membership import DropNodes, Resized
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.status import Notice


class MinNodes:
    """Leaves nodes out."""

    def __init__(self, model: Model, admission: Admission):
        self._model = model
        self._admission = admission

    def handle_drop_nodes(self, client: str, message: DropNodes) -> None:
        """Number the ranks of those that are here."""
        m = self._model
        reason = self._refusal(message)
        if reason:
            m.refuse(client, message.request, reason)
            return
        missing = self._missing()
        m.left_out = tuple(f"node {n} was left out: {message.nodes[n]}" for n in missing)
        world = m.world
        world.close_up()
        here = ", ".join(f"node {n.node_rank} is {n.facts.hostname}" for n in world.nodes.values())
        notes = (*m.left_out, f"the world is formed with {world.nnodes} of {world.nnodes + len(missing)} nodes: {here}")
        m.broadcast(Notice("; ".join(notes)))
        self._admission.number()
        m.send(client, RankReply(message.request, -1, Resized(len(world.ranks), {}, (), notes)))

    def _refusal(self, message: DropNodes) -> str:
        m = self._model
        if m.world.ranks:
            return "all nodes have come; ranks that are not wanted can be removed from the world"
        if m.world.is_by_task:
            return "each task that was started is a rank, and their number is fixed"
        missing = self._missing()
        awaited = [n for n in missing if n not in message.nodes]
        if awaited:
            return f"node {awaited[0]} is still awaited"
        came = [n for n in message.nodes if n not in missing]
        if came:
            return f"node {came[0]} is here"
        here, least = m.world.nnodes - len(missing), m.settings.min_nodes
        if not least or here < least:
            return f"{here} of {m.world.nnodes} nodes are here; at least {least or m.world.nnodes} are needed"
        return ""

    def _missing(self) -> list[int]:
        world = self._model.world
        return [n for n in range(world.nnodes) if n not in world.nodes or not world.nodes[n].is_here]
