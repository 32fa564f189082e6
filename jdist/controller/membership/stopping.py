"""Stopping: the end of the cluster. Every agent ends its ranks, which are given time for that, and then itself. Pure.

Clients are told that the cluster is gone once all agents have ended, or should have: what ranks write until then, and
which of them took too long, is still passed on.
"""

from jdist.controller.model.model import Exit, Model
from jdist.controller.model.phases import transition
from jdist.controller.model.world import Node
from jdist.core.messages.membership import EndOverdue, Shutdown
from jdist.core.messages.status import Notice, Stopped

_AGENTS_END = 5.0  # Seconds for agents to end themselves, and workers that were killed.


class Stopping:
    """Ends the cluster."""

    def __init__(self, model: Model):
        self._model = model
        self._reason = ""
        self.deadline: float | None = None  # When agents that have not ended are no longer waited for.

    def begin(self, reason: str, *, now: bool = False) -> None:
        """Have every agent end. Called again, only ``now`` has an effect: ranks are not waited for any longer."""
        m = self._model
        grace = 0.0 if now else m.settings.end_grace
        if m.phase != "stopping":
            transition(m, "stopping", reason)
            self._reason = reason
            agents = {node.agent for node in m.world.nodes.values()}
        elif now:
            agents = self._awaited()
        else:
            return
        for agent in sorted(agents):
            m.send(agent, Shutdown(grace))
        self.deadline = m.now + grace + _AGENTS_END
        self.finish_if_over()

    def finish_if_over(self) -> None:
        """End the controller once no agent is left, or at the deadline."""
        m = self._model
        if self.deadline is None:
            return
        if m.now >= self.deadline or not self._awaited():
            self.deadline = None
            m.broadcast(Stopped(self._reason))
            m.out.append(Exit(self._reason))

    def _awaited(self) -> set[str]:
        """Agents whose processes have not ended, as far as is known."""
        return {peer for peer in self._model.liveness_names.values() if peer.startswith("a-")}

    def handle_overdue(self, _: Node, message: EndOverdue) -> None:
        """A rank had to be killed: say what was cut off. Also after a restart, or when it was removed."""
        text = f"rank {message.as_rank} did not end within {message.grace:g} s and was killed: {message.doing}"
        self._model.broadcast(Notice(text))
