"""Kubernetes: the cluster's nodes are the pods of a StatefulSet, which is applied, watched and removed here."""

import asyncio
from collections.abc import Awaitable
from importlib.util import find_spec

import msgspec

from jdist.core.errors import UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.remedy import Remedy
from jdist.core.settings import Settings
from jdist.launch.base import Launcher, LaunchPlan
from jdist.launch.kubernetes import pods as reading
from jdist.launch.kubernetes.api import KubeApi
from jdist.launch.kubernetes.manifest import PodSpec, add_pod_arguments, pods_of
from jdist.launch.kubernetes.watch import PodWatch
from jdist.launch.support import label_of

if find_spec("kubernetes") is None:
    raise ImportError("kubernetes")  # half a second to import, so only when something is launched


def _read(settings: Settings, name: str) -> tuple[PodSpec, str]:
    """Parse the arguments after ``--``: the pods, and the kubeconfig's context. Raises UsageError."""
    p = ArgumentParser("--launcher kubernetes --")
    add_pod_arguments(p)
    p.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig; default: its current one")
    o = p.parse(settings.launcher_args)
    return pods_of(o, name, settings), o.context


_INVITATION = 30 * 86400.0  # Seconds for which the join line is valid: a pod that is restarted joins again with it.


class KubernetesLauncher(Launcher):
    """Applies the objects of :mod:`jdist.launch.kubernetes.manifest` and reports the state of the pods."""

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._pods, self._context = _read(plan.settings, label_of(plan))
        if plan.first:
            text = "--launcher kubernetes cannot add a node to a running cluster"
            raise UsageError(text, remedies=(Remedy("invite", "print a line for one"),))
        self._api: KubeApi | None = None
        self._watch: PodWatch | None = None
        self._has_begun = False

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        settings = super().complete(settings)
        _read(settings, "any")
        return msgspec.structs.replace(settings, invitation=max(settings.invitation, _INVITATION))

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Remove what an earlier cluster of this name has left, then apply the objects once the line is known."""
        api = await self._connected()
        await asyncio.to_thread(api.remove)
        line = await join_line
        self._has_begun = True
        await asyncio.to_thread(api.apply, line)
        self._watch = PodWatch(api)

    async def _connected(self) -> KubeApi:
        if self._api is None:
            self._api = await asyncio.to_thread(KubeApi, self._pods, self._context)
        return self._api

    def failures(self) -> dict[int, str]:
        """Pods that cannot start."""
        return {} if self._watch is None else self._watch.failures()

    def describe(self) -> str:
        if self._watch is None:
            return "" if self._api is None else "Kubernetes has been reached"
        told = reading.describe(self._watch.pods(), self._pods.nnodes)
        return "; ".join(filter(None, (self._watch.trouble, told)))

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Delete the pod. Its StatefulSet creates another, which reads the new line."""
        api = await self._connected()
        called = self.node_names[node_rank] if node_rank < len(self.node_names) else ""
        await asyncio.to_thread(api.replace_pod, called or f"{self._pods.name}-{node_rank}", join_line)
        if self._watch is None:
            self._watch = PodWatch(api)
        return True

    async def release(self) -> None:
        """End the watch: pods run without it."""
        if self._watch is not None:
            await asyncio.to_thread(self._watch.end)
            self._watch = None
        self._hang_up()

    def _hang_up(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None

    async def end(self) -> None:
        """Remove what this launcher applied."""
        await self.release()
        if self._has_begun:
            await self.remove_leftovers()

    async def remove_leftovers(self) -> None:
        """Delete StatefulSet, Service and Secret, and wait until the pods are gone."""
        api = await self._connected()
        try:
            await asyncio.to_thread(api.remove)
            self._has_begun = False
        finally:
            self._hang_up()
