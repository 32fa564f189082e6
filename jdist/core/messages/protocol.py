"""Protocol: queries, their replies, and which messages travel in each direction.

::

    client ──► controller   ClientMessage        controller ──► client   ToClient
    agent  ──► controller   AgentMessage         controller ──► agent    ToAgent
    worker ──► agent        WorkerMessage        agent ──► worker        ToWorker

Each idea's module lists its own messages of a direction, and its queries (``op``) and replies, at its end.
"""

from msgspec import structs

from jdist.core.messages import code, debug, membership, nodes, observation, runs, saving, status, values, widgets
from jdist.core.messages.base import CommonReplyBody, Message, QueryFailed
from jdist.core.outcome import ErrorInfo

NodeOp = nodes.NodeOp | code.NodeOp | values.GetDebugLog
_NodeAnswer = nodes.NodeReplyBody | code.NodeReplyBody | values.DebugLog
NodeReplyBody = _NodeAnswer | CommonReplyBody
_ControllerOp = membership.Invite | status.SetOrigin
RankOp = values.RankOp | observation.RankOp | debug.RankOp | widgets.RankOp | _ControllerOp
_RankAnswer = values.RankReplyBody | observation.RankReplyBody | debug.RankReplyBody | widgets.RankReplyBody
_ControllerAnswer = membership.GroupCreated | membership.RankReplyBody
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
_Recorded = nodes.ClientMessage
_Members = membership.ClientMessage | code.ClientMessage
ClientMessage = status.ClientMessage | _CellMessage | _Recorded | _Members | _Query
_Runs = runs.ToClient | debug.ToClient | saving.ToClient | nodes.ToClient
_ToMembers = membership.ToClient | code.ToClient
ToClient = status.ToClient | _Runs | _ToMembers | observation.VerdictChanged | _Reply
_FromCells = runs.AgentMessage | debug.AgentMessage | saving.AgentMessage | observation.Stalled
AgentMessage = membership.AgentMessage | code.AgentMessage | _FromCells | _Reply
ToAgent = membership.ToAgent | code.ToAgent | runs.ToAgent | debug.ToAgent | saving.ToAgent | _Query
_FromCell = runs.WorkerMessage | saving.WorkerMessage | observation.Stalled
WorkerMessage = membership.WorkerMessage | code.WorkerMessage | _FromCell | RankReply
_Cells = runs.ExecuteCell | runs.AbortRun | debug.ToAgent
ToWorker = _Cells | saving.ToWorker | membership.FormWorld | code.ToWorker | membership.ToWorker | RankQuery


def instead_of(message: object, reason: str) -> Message | None:
    """What is sent in place of a message that cannot be sent, for the ``reason``; None: nothing waits for it."""
    match message:
        case runs.RankDone():
            error = ErrorInfo("NotSent", f"how the cell ended could not be sent: {reason}")
            return structs.replace(message, kind="error", payload=None, held="", error=error, digests=())
        case RankReply() | NodeReply():
            return structs.replace(message, body=QueryFailed(reason))
        case runs.RunRecord():
            return status.RequestRefused(message.request, reason)
    return None
