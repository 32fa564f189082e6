"""Protocol: queries, their replies, and which messages travel in each direction.

::

    client ──► controller   ClientMessage        controller ──► client   ToClient
    agent  ──► controller   AgentMessage         controller ──► agent    ToAgent
    worker ──► agent        WorkerMessage        agent ──► worker        ToWorker
"""

from __future__ import annotations

from jdist.core.messages.base import Ack, Message, Progress, QueryFailed
from jdist.core.messages.code import (
    AdoptTree,
    ApplyTree,
    CodeSynced,
    CompareTree,
    StorePieces,
    TreeApplied,
    TreeCompared,
)
from jdist.core.messages.groups import (
    FormWorld,
    GroupCreated,
    GroupMade,
    MakeGroup,
    MakeMesh,
    StartStore,
    StoreDown,
    StoreUp,
    WorldFailed,
    WorldFormed,
)
from jdist.core.messages.introspection import (
    Complete,
    Completed,
    Console,
    ConsoleAt,
    DebugLog,
    GetDebugLog,
    Inspect,
    Inspected,
    Logs,
    LogText,
)
from jdist.core.messages.membership import (
    AddNode,
    AgentHello,
    AgentLeaving,
    BeRank,
    DropNodes,
    Heartbeat,
    Invite,
    Invited,
    LivenessLost,
    LivenessRenewed,
    PlaceOpened,
    Rejected,
    RemoveRanks,
    Renumber,
    Renumbered,
    ReplaceWorker,
    Resized,
    Restart,
    Shutdown,
    Welcome,
    WorkerDown,
    WorkerHello,
    WorkerUp,
)
from jdist.core.messages.nodes import (
    ClockReading,
    Listen,
    Listening,
    NodeReported,
    PathProbed,
    ProbePath,
    ReadClock,
    ReportNode,
)
from jdist.core.messages.observation import (
    GetStack,
    GetTrace,
    Observation,
    Observe,
    RankTrace,
    StackText,
    Stalled,
    VerdictChanged,
)
from jdist.core.messages.output import Output
from jdist.core.messages.runs import (
    AbortRun,
    ExecuteCell,
    InputReply,
    InputRequest,
    Interrupt,
    RankDone,
    RunAccepted,
    RunCell,
    RunEnded,
    RunStarted,
)
from jdist.core.messages.status import (
    Attached,
    ClientHello,
    ClusterFacts,
    Notice,
    RequestRefused,
    RunsChanged,
    StatusReport,
    StatusRequest,
    StopCluster,
    Stopped,
)
from jdist.core.messages.values import (
    BindNames,
    Describe,
    Described,
    Digest,
    Digested,
    ElementRead,
    Evaluate,
    Evaluated,
    Fetch,
    Fetched,
    Forward,
    ForwardedAt,
    Hold,
    ReadElement,
    Release,
)

NodeOp = ReadClock | ReportNode | Listen | ProbePath | CompareTree | StorePieces | ApplyTree | AdoptTree | GetDebugLog


NodeReplyBody = (
    ClockReading
    | NodeReported
    | Listening
    | PathProbed
    | TreeCompared
    | TreeApplied
    | DebugLog
    | Ack
    | Progress
    | QueryFailed
)


class NodeQuery(Message, frozen=True):
    """A question to ``nodes``; each one's agent answers for itself."""

    request: str
    nodes: tuple[int, ...]
    op: NodeOp


class NodeReply(Message, frozen=True):
    """One node's answer."""

    request: str
    node: int
    body: NodeReplyBody


RankOp = (
    Evaluate
    | Fetch
    | Release
    | BindNames
    | Describe
    | Digest
    | ReadElement
    | Observe
    | GetStack
    | GetTrace
    | Complete
    | Inspect
    | Logs
    | Console
    | GetDebugLog
    | Forward
    | Hold
    | Invite
)


RankReplyBody = (
    Evaluated
    | Fetched
    | Described
    | Digested
    | ElementRead
    | Observation
    | StackText
    | RankTrace
    | Completed
    | Inspected
    | LogText
    | ConsoleAt
    | DebugLog
    | ForwardedAt
    | GroupCreated
    | Invited
    | PlaceOpened
    | Resized
    | Ack
    | Progress
    | QueryFailed
)


class RankQuery(Message, frozen=True):
    """A question to ``ranks``; each answers for itself. Ranks: empty means the controller is asked."""

    request: str
    ranks: tuple[int, ...]
    op: RankOp


class RankReply(Message, frozen=True):
    """One rank's answer (-1: the controller's)."""

    request: str
    rank: int
    body: RankReplyBody


ClientMessage = (
    ClientHello
    | RunCell
    | Interrupt
    | Restart
    | AddNode
    | RemoveRanks
    | DropNodes
    | MakeGroup
    | MakeMesh
    | StatusRequest
    | InputReply
    | StopCluster
    | RankQuery
    | NodeQuery
)


ToClient = (
    Attached
    | ClusterFacts
    | StatusReport
    | RunAccepted
    | RequestRefused
    | RunStarted
    | Output
    | RankDone
    | RunEnded
    | InputRequest
    | VerdictChanged
    | Notice
    | RunsChanged
    | RankReply
    | NodeReply
    | Stopped
)


AgentMessage = (
    AgentHello
    | WorkerUp
    | WorkerDown
    | StoreUp
    | StoreDown
    | WorldFormed
    | WorldFailed
    | GroupMade
    | Output
    | RankDone
    | InputRequest
    | RankReply
    | NodeReply
    | Stalled
    | Renumbered
    | LivenessLost
    | AgentLeaving
    | Heartbeat
)


ToAgent = (
    Welcome
    | LivenessRenewed
    | Rejected
    | StartStore
    | ExecuteCell
    | AbortRun
    | FormWorld
    | ReplaceWorker
    | Renumber
    | RankQuery
    | NodeQuery
    | InputReply
    | Shutdown
)


WorkerMessage = WorkerHello | WorldFormed | WorldFailed | GroupMade | RankReply | Stalled


ToWorker = ExecuteCell | AbortRun | FormWorld | RankQuery | BeRank | CodeSynced | Shutdown
