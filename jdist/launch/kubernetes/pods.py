"""Pods: their state as Kubernetes reports it, worded so that a user can act on it.

They are read as JSON (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/): the client's classes change.
"""

from typing import Any

from jdist.launch.kubernetes.manifest import CONTAINER

Pod = dict[str, Any]

HOPELESS = {  # Waiting reasons that do not go away by waiting longer.
    "CrashLoopBackOff": "its agent ends again and again",
    "CreateContainerConfigError": "its container cannot be set up",
    "CreateContainerError": "its container cannot be made",
    "ErrImageNeverPull": "its image is not on the node, and is not to be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "InvalidImageName": "its image's name is none",
    "RunContainerError": "its container cannot be started",
}


def node_rank_of(pod: Pod) -> int:
    """Node rank of a pod: the ordinal at the end of its name."""
    return int(pod["metadata"]["name"].rpartition("-")[2])


def failure(pod: Pod) -> str:
    """Why this pod failed or cannot start; empty while it still may."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    if status.get("phase") == "Failed":
        return f"pod {name} has failed: {_join(status.get('reason'), status.get('message')) or 'no reason is given'}"
    waiting = _state(pod).get("waiting") or {}
    if waiting.get("reason") not in HOPELESS:
        return ""
    text = f"pod {name}: {HOPELESS[waiting['reason']]} ({_join(waiting['reason'], waiting.get('message'))})"
    ended = _state(pod, "lastState").get("terminated")
    if ended:
        how = [f"code {ended.get('exitCode')}", _join(ended.get("reason"), ended.get("message"))]
        text += f"; it last ended with {', '.join(filter(None, how))}"
    return text


def is_crashing(pod: Pod) -> bool:
    """Whether its log may say why it fails."""
    return (_state(pod).get("waiting") or {}).get("reason") == "CrashLoopBackOff"


def why_pending(pod: Pod) -> str:
    """Why a pod is not running yet; empty when it runs."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being removed"
    waiting, ended = _state(pod).get("waiting"), _state(pod).get("terminated")
    if waiting:
        return f"pod {name} waits: {_join(waiting.get('reason', 'no reason is given'), waiting.get('message'))}"
    if ended:
        return f"pod {name} ended with code {ended.get('exitCode')} and is started again"
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"pod {name} is pending: {_join(condition.get('reason'), condition.get('message'))}"
    return "" if status.get("phase") == "Running" else f"pod {name} is {status.get('phase', 'pending').lower()}"


def describe(pods: list[Pod], nnodes: int) -> str:
    """Why pods are not running yet; empty when all run."""
    told = [why for pod in sorted(pods, key=node_rank_of) if (why := why_pending(pod))]
    if len(pods) < nnodes:
        told.append(f"{len(pods)} of {nnodes} pods are there")
    return "; ".join(told)


def _state(pod: Pod, which: str = "state") -> dict[str, Any]:
    """The state of the agent's container, or with ``lastState`` how it ended the last time."""
    containers = pod.get("status", {}).get("containerStatuses") or []
    return next((c.get(which) or {} for c in containers if c.get("name") == CONTAINER), {})


def _join(*words: str | None) -> str:
    return ": ".join(" ".join(w.split()) for w in words if w)
