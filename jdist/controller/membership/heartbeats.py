"""Heartbeats: when a silent node counts as unreachable, for how long its ranks are kept, and when it is lost. Pure.

A node's states, and what moves it on; nothing else does::

    in reach ──silent for beat_timeout──► unreachable ──silent for node_grace──► gone ──an agent joins──► in reach
     ▲    │                                  │                                    ▲
     │    └──its agent's process ended───────┼────────────────────────────────────┘
     └───────────anything is heard───────────┘

An unreachable node has lost nothing: its ranks run on, and messages to it and from it arrive in order when the network
is there again (wire/transport/streams). A run that waits for it waits. What tells a dead agent from a
network that is cut is its liveness connection (wire/bulk/server): only the end of a process closes that in order.
"""

from jdist.controller.membership.rank_loss import RankLoss
from jdist.controller.model.model import Model
from jdist.controller.model.world import Node
from jdist.core.messages.membership import LivenessRenewed
from jdist.core.messages.status import Notice


class Heartbeats:
    """Watches over when each node was last heard of."""

    def __init__(self, model: Model, rank_loss: RankLoss):
        self._model = model
        self._rank_loss = rank_loss

    def record(self, node: Node) -> None:
        """A node's agent said something, if only that it lives."""
        m = self._model
        if node.is_unreachable:
            node.is_unreachable = False
            node.back_at = m.now
            silence = m.now - node.last_heard
            m.broadcast(Notice(f"{node.name} is back after {silence:.1f} s: nothing was lost"))
        node.last_heard = m.now

    def renew_liveness(self, node: Node) -> None:
        """Let its agent dial another liveness connection; no earlier one tells anything any more."""
        self._model.drop_liveness_names(node.agent)
        self._model.send(node.agent, LivenessRenewed(self._model.new_liveness_name(node.agent)))

    def handle_tick(self) -> None:
        """Report the nodes that have become unreachable, and give up those that have been for too long."""
        m = self._model
        for node in [n for n in m.world.nodes.values() if n.is_here]:
            silence = m.now - node.last_heard
            if silence >= m.settings.node_grace:
                self._rank_loss.node_gone(node, f"last heard {silence:.0f} s ago")
            elif silence >= m.settings.beat_timeout and not node.is_unreachable:
                node.is_unreachable = True
                m.broadcast(Notice(self._describe(node)))

    def silences(self) -> tuple[str, ...]:
        """A sentence for each unreachable node."""
        return tuple(self._describe(n) for n in self._model.world.nodes.values() if n.is_unreachable)

    def _describe(self, node: Node) -> str:
        silence = self._model.now - node.last_heard
        left = max(0.0, self._model.settings.node_grace - silence)
        return f"{node.name} is unreachable: last heard {silence:.1f} s ago; its ranks are kept for {left:.0f} s"

    def next_wakeup(self) -> float | None:
        """When a node's state changes next if nothing is heard."""
        gone, unreachable = self._model.settings.node_grace, self._model.settings.beat_timeout
        nodes = [n for n in self._model.world.nodes.values() if n.is_here]
        waits = (n.last_heard + (gone if n.is_unreachable else min(unreachable, gone)) for n in nodes)
        return min(waits, default=None)
