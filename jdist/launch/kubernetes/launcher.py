"""Kubernetes: the cluster's nodes are the pods of a StatefulSet, which is applied, watched and removed here."""

import asyncio
import time
from collections.abc import Awaitable
from importlib.util import find_spec

import msgspec

from jdist.core.errors import LaunchError
from jdist.core.quantities import ArgumentParser
from jdist.core.settings import Settings
from jdist.launch.base import Launcher, LaunchPlan, poll_pause
from jdist.launch.form import COUNT, WORD, LauncherForm, LauncherOption
from jdist.launch.kubernetes.api import KubeApi
from jdist.launch.kubernetes.manifest import PodSpec, add_pod_arguments, pods_of
from jdist.launch.kubernetes.pods import Pod, describe

if find_spec("kubernetes") is None:
    raise ImportError("kubernetes")  # half a second to import, so only when something is launched

_INVITATION = 30 * 86400.0  # Seconds for which the join line is valid: a pod that is restarted joins again with it.


def _read(settings: Settings, name: str) -> tuple[PodSpec, str]:
    """Parse the arguments after ``--``: the pods, and the kubeconfig's context. Raises UsageError."""
    p = ArgumentParser("--launcher kubernetes --")
    add_pod_arguments(p)
    p.add_argument("--context", default="", metavar="NAME", help="context of the kubeconfig; default: its current one")
    o = p.parse(settings.launcher_args)
    return pods_of(o, name, settings), o.context


class KubernetesLauncher(Launcher):
    """Applies the objects of :mod:`jdist.launch.kubernetes.manifest` and reports the state of the pods."""

    form = LauncherForm(
        options=(
            LauncherOption(
                "--image", "Image", note="Holds the nodes' Python environment, with jdist in it", pattern=WORD
            ),
            LauncherOption("--namespace", "Namespace", pattern=WORD),
            LauncherOption("--gpus", "GPUs per node", "8", pattern=COUNT),
            LauncherOption("--context", "Context", note="Of the kubeconfig"),
        ),
        arguments="other options of the pods, such as --cpu 8 --memory 64Gi",
        cannot_add="--launcher kubernetes cannot add a node to a running cluster",
    )

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._spec, self._context = _read(plan.settings, plan.label)
        self._api: KubeApi | None = None
        self._polling: asyncio.Task[None] | None = None
        self._progress = ""  # Why pods are not running yet, or why the API server cannot be reached at the moment.
        self._failures: dict[int, str] = {}
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
        self._polling = asyncio.create_task(self._poll(api))

    async def _connected(self) -> KubeApi:
        if self._api is None:
            self._api = await asyncio.to_thread(KubeApi, self._spec, self._context)
            self._progress = "Kubernetes has been reached"
        return self._api

    async def _poll(self, api: KubeApi) -> None:
        """Keep the state of the pods current."""
        began, trouble = time.monotonic(), ""
        pods: list[Pod] = []
        while True:
            try:
                pods, trouble = await asyncio.to_thread(api.list_pods), ""
                self._failures = await asyncio.to_thread(api.failures, pods)
            except LaunchError as e:
                trouble = str(e)
            self._progress = "; ".join(filter(None, (trouble, describe(pods, self._spec.nnodes))))
            await asyncio.sleep(poll_pause(time.monotonic() - began))

    def failures(self) -> dict[int, str]:
        """Pods that cannot start."""
        return self._failures

    def describe(self) -> str:
        return self._progress

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Delete the pod. Its StatefulSet creates another, which reads the new line."""
        api = await self._connected()
        name = self.name_of(node_rank) or f"{self._spec.name}-{node_rank}"
        await asyncio.to_thread(api.replace_pod, name, join_line)
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll(api))
        return True

    async def release(self) -> None:
        """Poll no more: pods run without it."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
            self._polling = None
        self._failures = {}
        self._disconnect()

    def _disconnect(self) -> None:
        if self._api is not None:
            self._api.close()
        self._api, self._progress = None, ""

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
            self._disconnect()
