"""NodeContext: what all parts of an agent share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdist.agent.node.join_options import JoinOptions
from jdist.agent.starters.prewarm import CreateTask, Starter
from jdist.core.messages.base import Message
from jdist.core.messages.membership import NodeFacts
from jdist.wire.transport.invitations import Endpoint


@dataclass(frozen=True)
class NodeContext:
    """The node, its place in the launch, and the agent's ways to act."""

    zmq_context: Any
    endpoint: Endpoint  # Where the controller is reached.
    options: JoinOptions
    facts: NodeFacts
    directory: Path  # Sockets, logs and connection files of this agent; removed at its end.
    starter: Starter
    send: Callable[[Message], None]  # Sends to the controller.
    create_task: CreateTask

    @property
    def data_port(self) -> tuple[str, int]:
        return self.endpoint.host, self.endpoint.data_port
