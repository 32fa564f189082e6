"""Protocol: queries, their replies, and which messages travel in each direction.

::

    client ──► controller   ClientMessage        controller ──► client   ToClient
    agent  ──► controller   AgentMessage         controller ──► agent    ToAgent
    worker ──► agent        WorkerMessage        agent ──► worker        ToWorker
"""

from __future__ import annotations

from jdist.core.messages.base import Fault, Message, Nothing, Progress
from jdist.core.messages.code import Adopt, Compare, Compared, Importable, Settle, Settled, Store
from jdist.core.messages.groups import (
    Form,
    Formed,
    FormFailed,
    Grouped,
    GroupMade,
    MakeGroup,
    MakeMesh,
    StartStore,
    StoreDown,
    StoreUp,
)
from jdist.core.messages.introspection import Complete, Completed, Console, ConsoleAt, Inspect, Inspected, Logs, LogText
from jdist.core.messages.membership import (
    AddNode,
    AgentHello,
    Beat,
    BeRank,
    Invite,
    Invited,
    LeaveOut,
    Leaving,
    NewLifeline,
    NoLifeline,
    Placed,
    Quit,
    RemoveRanks,
    Renumber,
    Renumbered,
    Replace,
    Resized,
    Restart,
    Turned,
    Welcome,
    WorkerDown,
    WorkerHello,
    WorkerUp,
)
from jdist.core.messages.nodes import Clock, ClockAt, Examine, Examined, Listen, Listening, Reach, Reached
from jdist.core.messages.observation import Judged, Look, Looked, Stack, Stacked, Stalled, Trace, Traced
from jdist.core.messages.output import Output
from jdist.core.messages.runs import (
    Accepted,
    Cell,
    Done,
    Halt,
    InputReply,
    InputRequest,
    Interrupt,
    RunCell,
    RunEnded,
    Started,
)
from jdist.core.messages.status import (
    Attached,
    ClientHello,
    ClusterFacts,
    Moved,
    Notice,
    Refused,
    StopCluster,
    Stopped,
    Survey,
    Surveyed,
)
from jdist.core.messages.values import (
    Describe,
    Described,
    Digest,
    Digested,
    Element,
    Elementary,
    Fetch,
    Fetched,
    Keep,
    PassedAt,
    PassOn,
    Peek,
    Peeked,
    Put,
    Release,
)

NodeOp = Clock | Examine | Listen | Reach | Compare | Store | Settle | Adopt


NodeAnswered = ClockAt | Examined | Listening | Reached | Compared | Settled | Nothing | Progress | Fault


class AskNodes(Message, frozen=True):
    """A question to ``nodes``; each one's agent answers for itself."""

    request: str
    nodes: tuple[int, ...]
    op: NodeOp


class NodeAnswer(Message, frozen=True):
    """One node's answer."""

    request: str
    node: int
    body: NodeAnswered


Op = (
    Peek
    | Fetch
    | Release
    | Put
    | Describe
    | Digest
    | Element
    | Look
    | Stack
    | Trace
    | Complete
    | Inspect
    | Logs
    | Console
    | PassOn
    | Keep
    | Invite
)


Answered = (
    Peeked
    | Fetched
    | Described
    | Digested
    | Elementary
    | Looked
    | Stacked
    | Traced
    | Completed
    | Inspected
    | LogText
    | ConsoleAt
    | PassedAt
    | Grouped
    | Invited
    | Placed
    | Resized
    | Nothing
    | Progress
    | Fault
)


class Ask(Message, frozen=True):
    """A question to ``ranks``; each answers for itself. Ranks: empty means the controller is asked."""

    request: str
    ranks: tuple[int, ...]
    op: Op


class Answer(Message, frozen=True):
    """One rank's answer (-1: the controller's)."""

    request: str
    rank: int
    body: Answered


ClientMessage = (
    ClientHello
    | RunCell
    | Interrupt
    | Restart
    | AddNode
    | RemoveRanks
    | LeaveOut
    | MakeGroup
    | MakeMesh
    | Survey
    | InputReply
    | StopCluster
    | Ask
    | AskNodes
)


ToClient = (
    Attached
    | ClusterFacts
    | Surveyed
    | Accepted
    | Refused
    | Started
    | Output
    | Done
    | RunEnded
    | InputRequest
    | Judged
    | Notice
    | Moved
    | Answer
    | NodeAnswer
    | Stopped
)


AgentMessage = (
    AgentHello
    | WorkerUp
    | WorkerDown
    | StoreUp
    | StoreDown
    | Formed
    | FormFailed
    | GroupMade
    | Output
    | Done
    | InputRequest
    | Answer
    | NodeAnswer
    | Stalled
    | Renumbered
    | NoLifeline
    | Leaving
    | Beat
)


ToAgent = (
    Welcome
    | NewLifeline
    | Turned
    | StartStore
    | Cell
    | Halt
    | Form
    | Replace
    | Renumber
    | Ask
    | AskNodes
    | InputReply
    | Quit
)


WorkerMessage = WorkerHello | Formed | FormFailed | GroupMade | Answer | Stalled


ToWorker = Cell | Halt | Form | Ask | BeRank | Importable | Quit
