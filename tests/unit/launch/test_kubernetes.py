"""What is said of pods, by their status as the API server sends it."""

from __future__ import annotations

from typing import Any

import pytest

from jdist.launch.kubernetes import describe, failure, why_pending


def pod(name: str = "c1-0", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"phase": "Pending", **status}}


def container(**parts: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "agent", "restartCount": 0, **parts}]}


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return pod(**container(state={"waiting": {"reason": reason, "message": message}}, **more))


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (pod(conditions=[UNSCHEDULABLE]), "pod c1-0 is pending: Unschedulable: 0/3 nodes are available: 3 Insuff"),
        (waiting("ContainerCreating"), "pod c1-0 waits: ContainerCreating"),
        (waiting("ErrImagePull", "not found"), "pod c1-0 waits: ErrImagePull: not found"),
        (pod(), "pod c1-0 is pending"),
        (pod(phase="Running", **container(state={"running": {}})), ""),
        (pod(phase="Running", **container(state={"terminated": {"exitCode": 1}})), "pod c1-0 ended with code 1 and"),
    ],
)
def test_a_pod_that_may_come_up_is_waited_for_with_the_reason(given: dict[str, Any], why: str) -> None:
    assert why_pending(given).startswith(why)
    assert bool(why_pending(given)) == bool(why)
    assert failure(given) == ""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "lab:9"'),
            'pod c1-0: its image cannot be pulled (ImagePullBackOff: Back-off pulling image "lab:9")',
        ),
        (
            waiting("CrashLoopBackOff", lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            "pod c1-0: its agent ends again and again (CrashLoopBackOff); it last ended with code 137, OOMKilled",
        ),
        (
            pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
            "pod c1-0 has failed: Evicted: The node was low on resource: memory.",
        ),
    ],
)
def test_a_pod_that_will_not_come_up_says_why(given: dict[str, Any], why: str) -> None:
    assert failure(given) == why


def test_all_pods_are_told_in_their_order_and_those_that_are_not_there_are_counted() -> None:
    running = pod("c1-2", phase="Running", **container(state={"running": {}}))
    text = describe([running, pod("c1-10"), pod("c1-1")], 4)
    assert text == "pod c1-1 is pending; pod c1-10 is pending; 3 of 4 pods are there"
    assert describe([running], 1) == ""
