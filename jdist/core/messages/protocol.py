"""Protocol: queries, their replies, and which messages travel in each direction.

::

    client ──► controller   ClientMessage        controller ──► client   ToClient
    agent  ──► controller   AgentMessage         controller ──► agent    ToAgent
    worker ──► agent        WorkerMessage        agent ──► worker        ToWorker

Each idea's module lists its own messages of a direction, and its queries (``op``) and replies, at its end.
"""

from msgspec import structs

from jdist.core.messages import (
    code,
    debug,
    groups,
    introspection,
    membership,
    nodes,
    observation,
    records,
    resources,
    runs,
    saving,
    status,
    values,
)
from jdist.core.messages.base import CommonReplyBody, Message, QueryFailed
from jdist.core.outcome import ErrorInfo

NodeOp = nodes.NodeOp | code.NodeOp | resources.NodeOp | introspection.GetDebugLog
_NodeAnswer = nodes.NodeReplyBody | code.NodeReplyBody | resources.NodeReplyBody | introspection.DebugLog
NodeReplyBody = _NodeAnswer | CommonReplyBody
_ControllerOp = membership.Invite | status.SetOrigin
RankOp = values.RankOp | observation.RankOp | introspection.RankOp | debug.RankOp | _ControllerOp
_RankAnswer = values.RankReplyBody | observation.RankReplyBody | introspection.RankReplyBody | debug.RankReplyBody
_ControllerAnswer = groups.GroupCreated | membership.RankReplyBody
RankReplyBody = _RankAnswer | _ControllerAnswer | CommonReplyBody


class NodeQuery(Message, frozen=True):
    """A query to ``nodes``; the agent of each answers."""

    request: str
    nodes: tuple[int, ...]
    op: NodeOp


class NodeReply(Message, frozen=True):
    """One node's answer."""

    request: str
    node: int
    body: NodeReplyBody


class RankQuery(Message, frozen=True):
    """A query to ``ranks``, each of which answers; without ranks, to the controller."""

    request: str
    ranks: tuple[int, ...]
    op: RankOp


class RankReply(Message, frozen=True):
    """One rank's answer (-1: the controller's)."""

    request: str
    rank: int
    body: RankReplyBody


_Query = RankQuery | NodeQuery
_Reply = RankReply | NodeReply
_CellMessage = runs.ClientMessage | debug.ClientMessage | saving.ClientMessage
_Recorded = records.ClientMessage | resources.ClientMessage
_Members = membership.ClientMessage | groups.ClientMessage | code.ClientMessage
ClientMessage = status.ClientMessage | _CellMessage | _Recorded | _Members | _Query
_Runs = runs.ToClient | debug.ToClient | saving.ToClient | records.ToClient | resources.ToClient
ToClient = status.ToClient | _Runs | observation.VerdictChanged | _Reply
_FromCells = runs.AgentMessage | debug.AgentMessage | saving.AgentMessage | observation.Stalled
AgentMessage = membership.AgentMessage | groups.AgentMessage | _FromCells | _Reply
ToAgent = membership.ToAgent | groups.ToAgent | code.ToAgent | runs.ToAgent | debug.ToAgent | saving.ToAgent | _Query
_FromCell = runs.WorkerMessage | saving.WorkerMessage | observation.Stalled
WorkerMessage = membership.WorkerMessage | groups.WorkerMessage | _FromCell | RankReply
_Cells = runs.ExecuteCell | runs.AbortRun | debug.ToAgent
ToWorker = _Cells | saving.ToWorker | groups.FormWorld | code.ToWorker | membership.ToWorker | RankQuery


def instead_of(message: object, reason: str) -> Message | None:
    """What is sent in place of a message that cannot be sent, for the ``reason``; None: nothing waits for it."""
    match message:
        case runs.RankDone():
            error = ErrorInfo("NotSent", f"how the cell ended could not be sent: {reason}")
            return structs.replace(message, kind="error", payload=None, held="", error=error, digests=())
        case RankReply() | NodeReply():
            return structs.replace(message, body=QueryFailed(reason))
        case records.RunRecord():
            return status.RequestRefused(message.request, reason)
    return None
