"""API: the calls to the Kubernetes API server that a launch needs, by the official client."""

import contextlib
import json
import time
from typing import Any

import msgspec

from jdist.core.errors import LaunchError
from jdist.launch.kubernetes.manifest import CONTAINER, PodSpec, secret, selector, service, stateful_set
from jdist.launch.kubernetes.pods import Pod, failure, is_crashing, node_rank_of

_REQUEST = 20.0  # Seconds for one answer of the API server.
_LOG_LINES = 3
_GONE = 60.0  # Seconds for pods to be gone: their grace, and some more.
_LOOK = 0.5  # Seconds between two polls whether pods are gone.
_NOT_FOUND = 404


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
