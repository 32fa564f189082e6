"""Kubernetes: a StatefulSet whose pods are the cluster's nodes; applied, watched and removed through the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from importlib.util import find_spec

import msgspec

from jdist.core.errors import UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.remedy import Remedy
from jdist.core.settings import Settings
from jdist.launch.base import Launcher, Plan
from jdist.launch.kubernetes import pods as reading
from jdist.launch.kubernetes.api import KubeApi
from jdist.launch.kubernetes.manifest import Pods, add_pod_arguments, pods_of
from jdist.launch.kubernetes.watch import PodWatch
from jdist.launch.labels import label_of

if find_spec("kubernetes") is None:
    raise ImportError("kubernetes")  # half a second to import, so only when something is launched


def _read(settings: Settings, name: str) -> tuple[Pods, str]:
    """What the user wrote after ``--``, and the kubeconfig's context. Raises UsageError."""
    p = ArgumentParser("--launcher kubernetes --")
    add_pod_arguments(p)
    p.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig; default: its current one")
    o = p.parse(settings.launcher_args)
    return pods_of(o, name, settings), o.context


_INVITATION = 30 * 86400.0
"""Seconds for which pods can join."""


class KubernetesLauncher(Launcher):
    """Applies the objects of :mod:`jdist.launch.kubernetes.manifest`, and says what becomes of the pods."""

    def __init__(self, plan: Plan):
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
        # A pod that is started again joins again: the line is of use for longer than others are.
        return msgspec.structs.replace(settings, invitation=max(settings.invitation, _INVITATION))

    async def launch(self, join_line: Awaitable[str]) -> None:
        """What another start of this name has left is removed first; pods are made when the line is known."""
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
        """Of pods that will not come up by waiting."""
        return {} if self._watch is None else self._watch.failures()

    def describe(self) -> str:
        if self._watch is None:
            return "" if self._api is None else "Kubernetes has been reached"
        told = reading.describe(self._watch.pods(), self._pods.nnodes)
        return "; ".join(filter(None, (self._watch.trouble, told)))

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """The pod is removed; its StatefulSet makes another, which reads the new line."""
        api = await self._connected()
        called = self.names[node_rank] if node_rank < len(self.names) else ""
        await asyncio.to_thread(api.replace_pod, called or f"{self._pods.name}-{node_rank}", join_line)
        if self._watch is None:
            self._watch = PodWatch(api)
        return True

    async def let_go(self) -> None:
        """The pods need nobody who watches them."""
        if self._watch is not None:
            await asyncio.to_thread(self._watch.end)
            self._watch = None
        self._hang_up()

    def _hang_up(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None

    async def end(self) -> None:
        """Remove what was applied here; the pods end by themselves when the cluster has."""
        await self.let_go()
        if self._has_begun:
            await self.clear()

    async def clear(self) -> None:
        """Remove StatefulSet, Service and Secret, and wait until the pods are gone."""
        api = await self._connected()
        try:
            await asyncio.to_thread(api.remove)
            self._has_begun = False
        finally:
            self._hang_up()
