"""Protocol: queries, their replies, and which messages travel in each direction.

::

    client ──► controller   ClientMessage        controller ──► client   ToClient
    agent  ──► controller   AgentMessage         controller ──► agent    ToAgent
    worker ──► agent        WorkerMessage        agent ──► worker        ToWorker
"""

from jdist.core.messages import (
    base,
    code,
    groups,
    introspection,
    membership,
    nodes,
    observation,
    output,
    runs,
    status,
    values,
)
from jdist.core.messages.base import Message

NodeOp = (
    nodes.ReadClock
    | nodes.ReportNode
    | nodes.Listen
    | nodes.ProbePath
    | code.CompareTree
    | code.StorePieces
    | code.ApplyTree
    | code.AdoptTree
    | introspection.GetDebugLog
)


NodeReplyBody = (
    nodes.ClockReading
    | nodes.NodeReported
    | nodes.Listening
    | nodes.PathProbed
    | code.TreeCompared
    | code.TreeApplied
    | introspection.DebugLog
    | base.Ack
    | base.Progress
    | base.QueryFailed
)


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


RankOp = (
    values.Evaluate
    | values.Fetch
    | values.Release
    | values.BindNames
    | values.Describe
    | values.Digest
    | values.ReadElement
    | observation.Observe
    | observation.GetStack
    | observation.GetTrace
    | introspection.Complete
    | introspection.Inspect
    | introspection.Logs
    | introspection.Console
    | introspection.GetDebugLog
    | values.Forward
    | values.Hold
    | membership.Invite
)


RankReplyBody = (
    values.Evaluated
    | values.Fetched
    | values.Described
    | values.Digested
    | values.ElementRead
    | observation.Observation
    | observation.StackText
    | observation.RankTrace
    | introspection.Completed
    | introspection.Inspected
    | introspection.LogText
    | introspection.ConsoleAt
    | introspection.DebugLog
    | values.ForwardedAt
    | groups.GroupCreated
    | membership.Invited
    | membership.PlaceOpened
    | membership.Resized
    | base.Ack
    | base.Progress
    | base.QueryFailed
)


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


ClientMessage = (
    status.ClientHello
    | runs.RunCell
    | runs.Interrupt
    | membership.Restart
    | membership.AddNode
    | membership.RemoveRanks
    | membership.DropNodes
    | groups.MakeGroup
    | groups.MakeMesh
    | status.StatusRequest
    | runs.InputReply
    | status.StopCluster
    | RankQuery
    | NodeQuery
)


ToClient = (
    status.Attached
    | status.ClusterFacts
    | status.StatusReport
    | runs.RunAccepted
    | status.RequestRefused
    | runs.RunStarted
    | output.Output
    | runs.RankDone
    | runs.RunEnded
    | runs.InputRequest
    | observation.VerdictChanged
    | status.Notice
    | status.RunsChanged
    | RankReply
    | NodeReply
    | status.Stopped
)


AgentMessage = (
    membership.AgentHello
    | membership.WorkerUp
    | membership.WorkerDown
    | groups.StoreUp
    | groups.StoreDown
    | groups.WorldFormed
    | groups.WorldFailed
    | groups.GroupMade
    | output.Output
    | runs.RankDone
    | runs.InputRequest
    | RankReply
    | NodeReply
    | observation.Stalled
    | membership.LivenessLost
    | membership.AgentLeaving
    | membership.Heartbeat
)


ToAgent = (
    membership.Welcome
    | membership.LivenessRenewed
    | membership.Rejected
    | groups.StartStore
    | runs.ExecuteCell
    | runs.AbortRun
    | groups.FormWorld
    | membership.StartWorker
    | membership.EndWorkers
    | RankQuery
    | NodeQuery
    | runs.InputReply
    | membership.Shutdown
)


WorkerMessage = (
    membership.WorkerHello
    | groups.WorldFormed
    | groups.WorldFailed
    | groups.GroupMade
    | RankReply
    | observation.Stalled
)


ToWorker = runs.ExecuteCell | runs.AbortRun | groups.FormWorld | RankQuery | code.CodeSynced | membership.Shutdown
