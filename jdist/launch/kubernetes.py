"""Nodes as the pods of a Kubernetes StatefulSet, which is applied, watched and removed here by the official client.

Pods are read as JSON (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/), because the client's classes
change. Their state is worded so that a user can act on it.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable
from importlib.util import find_spec
from typing import Any

import msgspec

from jdist.core.errors import LaunchError
from jdist.core.quantities import ArgumentParser
from jdist.core.settings import Settings
from jdist.launch.base import COUNT, WORD, Launcher, LauncherForm, LauncherOption, LaunchPlan, poll_pause
from jdist.launch.pods import CONTAINER, PodSpec, add_pod_arguments, pods_of, secret, selector, service, stateful_set

if find_spec("kubernetes") is None:
    raise ImportError("kubernetes")  # half a second to import, so only when something is launched

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
_REQUEST = 20.0  # Seconds for one answer of the API server.
_LOG_LINES = 3
_GONE = 60.0  # Seconds for pods to be gone: their grace, and some more.
_LOOK = 0.5  # Seconds between two polls whether pods are gone.
_NOT_FOUND = 404
_INVITATION = 30 * 86400.0  # Seconds for which the join line is valid: a pod that is restarted joins again with it.


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


class KubeApi:
    """Calls to the API server. Every method blocks and raises LaunchError with the server's message."""

    def __init__(self, pods: PodSpec, context: str):
        from kubernetes import client, config
        from kubernetes.config import ConfigException

        configuration = client.Configuration()
        try:
            if context:
                config.load_kube_config(context=context, client_configuration=configuration)
            else:
                config.load_config(client_configuration=configuration)
        except (ConfigException, OSError) as e:
            raise LaunchError(f"no Kubernetes cluster is set up for this user: {e}") from None
        self._client = client.ApiClient(configuration)
        self._core = client.CoreV1Api(self._client)
        self._apps = client.AppsV1Api(self._client)
        self._namespace = pods.namespace or _own_namespace(context)
        self._pods = msgspec.structs.replace(pods, namespace=self._namespace)
        self._labels = ",".join(f"{k}={v}" for k, v in selector(pods).items())

    def close(self) -> None:
        self._client.close()
        self._client.rest_client.pool_manager.clear()

    def _call(self, what: str, method: Any, *, ignore: int = 0, **options: Any) -> Any:
        """The answer to one request; None if it is an error of status ``ignore``."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        where = f"Kubernetes at {self._client.configuration.host}, namespace {self._namespace}"
        try:
            return method(namespace=self._namespace, _request_timeout=_REQUEST, **options)
        except ApiException as e:
            if e.status == ignore:
                return None
            words = f"{e.status} {e.reason}"
            with contextlib.suppress(ValueError, TypeError, KeyError):
                words = str(json.loads(e.body)["message"])
            raise LaunchError(f"{where}: cannot {what}: {words}") from None
        except (HTTPError, OSError) as e:
            raise LaunchError(f"{where}: cannot {what}: {e}") from None

    def apply(self, line: str) -> None:
        what = "set up the nodes"
        self._call(what, self._core.create_namespaced_secret, body=secret(self._pods, line))
        self._call(what, self._core.create_namespaced_service, body=service(self._pods))
        self._call(what, self._apps.create_namespaced_stateful_set, body=stateful_set(self._pods))

    def remove(self) -> None:
        """Delete the objects, ignoring those that do not exist, and wait until the pods are gone."""
        deletions = [
            self._apps.delete_namespaced_stateful_set,
            self._core.delete_namespaced_service,
            self._core.delete_namespaced_secret,
        ]
        found = [self._delete("remove the nodes", delete, self._pods.name) for delete in deletions]
        deadline = time.monotonic() + _GONE
        while found[0] and (left := self.list_pods()):
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"{len(left)} pods of StatefulSet {self._pods.name} in namespace {self._namespace} were not gone "
                    f"after {_GONE:.0f} s; kubectl get pods -l {self._labels} says why"
                )
            time.sleep(_LOOK)

    def _delete(self, what: str, delete: Any, name: str) -> bool:
        """Delete an object. Returns False if it does not exist."""
        return self._call(what, delete, ignore=_NOT_FOUND, name=name, propagation_policy="Background") is not None

    def list_pods(self) -> list[Pod]:
        listing = self._core.list_namespaced_pod
        answer = self._call("list the pods", listing, label_selector=self._labels, _preload_content=False)
        return list(json.loads(answer.data)["items"])

    def failures(self, pods: list[Pod]) -> dict[int, str]:
        """Why pods failed, by node rank, with the end of the log of those that crash."""
        ends = {node_rank_of(pod): (failure(pod), self._last_words(pod)) for pod in pods if failure(pod)}
        return {n: f"{why}; its last lines: {words}" if words else why for n, (why, words) in sorted(ends.items())}

    def _last_words(self, pod: Pod) -> str:
        """The end of the log of a container that ended; empty if it is not available."""
        if not is_crashing(pod):
            return ""
        which = {"name": pod["metadata"]["name"], "container": CONTAINER, "previous": True, "tail_lines": _LOG_LINES}
        with contextlib.suppress(LaunchError):
            answer = self._call("read a log", self._core.read_namespaced_pod_log, **which, _preload_content=False)
            return " / ".join(answer.data.decode(errors="replace").strip().splitlines())
        return ""

    def replace_pod(self, name: str, line: str) -> None:
        what, body = f"replace pod {name}", {"data": secret(self._pods, line)["data"]}
        self._call(what, self._core.patch_namespaced_secret, name=self._pods.name, body=body)
        self._delete(what, self._core.delete_namespaced_pod, name)


def _own_namespace(context: str) -> str:
    """Namespace of the pod that this runs in, else of the kubeconfig's context."""
    from kubernetes import config

    with contextlib.suppress(OSError), open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as f:
        return f.read().strip()
    with contextlib.suppress(config.ConfigException, KeyError):
        contexts, current = config.list_kube_config_contexts()
        chosen = next((c for c in contexts if c["name"] == context), current)
        return str(chosen["context"]["namespace"])
    return "default"


def _read(settings: Settings, name: str) -> tuple[PodSpec, str]:
    """Parse the arguments after ``--``: the pods, and the kubeconfig's context. Raises UsageError."""
    p = ArgumentParser("--launcher kubernetes --")
    add_pod_arguments(p)
    p.add_argument("--context", default="", metavar="NAME", help="context of the kubeconfig; default: its current one")
    o = p.parse(settings.launcher_args)
    return pods_of(o, name, settings), o.context


class KubernetesLauncher(Launcher):
    """Applies the objects of :mod:`jdist.launch.pods` and reports the state of the pods."""

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
