"""API: the calls to the Kubernetes API server that a launch needs, by the official client."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from jdist.core.errors import LaunchError
from jdist.launch.kubernetes.manifest import CONTAINER, PodSpec, secret, selector, service, stateful_set
from jdist.launch.kubernetes.pods import Pod

REQUEST = 20.0  # Seconds for one answer of the API server.
_LOG_LINES = 3
_GONE = 60.0  # Seconds for pods to be gone: their grace, and some more.
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
        self.core = client.CoreV1Api(self._client)
        self._apps = client.AppsV1Api(self._client)
        self.namespace = pods.namespace or _own_namespace(context)
        self.pods = msgspec.structs.replace(pods, namespace=self.namespace)
        self.labels = ",".join(f"{k}={v}" for k, v in selector(pods).items())

    def close(self) -> None:
        self._client.close()
        self._client.rest_client.pool_manager.clear()

    def apply(self, line: str) -> None:
        with self._translated_errors("set up the nodes"):
            self.core.create_namespaced_secret(self.namespace, secret(self.pods, line), _request_timeout=REQUEST)
            self.core.create_namespaced_service(self.namespace, service(self.pods), _request_timeout=REQUEST)
            self._apps.create_namespaced_stateful_set(self.namespace, stateful_set(self.pods), _request_timeout=REQUEST)

    def remove(self) -> None:
        """Delete the objects, ignoring those that do not exist, and wait until the pods are gone."""
        name, where = self.pods.name, {"namespace": self.namespace, "_request_timeout": REQUEST}
        with self._translated_errors("remove the nodes"):
            is_there = self._delete(self._apps.delete_namespaced_stateful_set, name, **where)
            self._delete(self.core.delete_namespaced_service, name, **where)
            self._delete(self.core.delete_namespaced_secret, name, **where)
            if is_there:
                self._wait_gone()

    @staticmethod
    def _delete(how: Any, name: str, **where: Any) -> bool:
        from kubernetes.client.exceptions import ApiException

        try:
            how(name, propagation_policy="Background", **where)
        except ApiException as e:
            if e.status != _NOT_FOUND:
                raise
            return False
        return True

    def _wait_gone(self) -> None:
        """Wait until a watch has reported the last pod as deleted."""
        listed, version = self.list_pods()
        left = {p["metadata"]["uid"] for p in listed}
        if not left:
            return
        stream = self.watch(version, int(_GONE))  # the server ends it by then
        try:
            for event in events(stream):
                if event["type"] == "DELETED":
                    left.discard(event["object"]["metadata"]["uid"])
                if not left:
                    return
        finally:
            stream.close()
        raise LaunchError(
            f"{len(left)} pods of StatefulSet {self.pods.name} in namespace {self.namespace} were not gone after "
            f"{_GONE:.0f} s; kubectl get pods -l {self.labels} says why"
        )

    def list_pods(self) -> tuple[list[Pod], str]:
        """PodSpec, and the version from which a watch goes on."""
        with self._translated_errors("list the pods"):
            got = self.core.list_namespaced_pod(
                self.namespace, label_selector=self.labels, _preload_content=False, _request_timeout=REQUEST
            )
            found = json.loads(got.data)
        return found["items"], found["metadata"].get("resourceVersion", "")

    def watch(self, version: str, seconds: int) -> Any:
        """The response of a watch; its lines are events."""
        with self._translated_errors("watch the pods"):
            return self.core.list_namespaced_pod(
                self.namespace,
                label_selector=self.labels,
                resource_version=version,
                timeout_seconds=seconds,
                watch=True,
                _preload_content=False,
                _request_timeout=(REQUEST, seconds + REQUEST),
            )

    def last_words(self, pod: str) -> str:
        """The end of the log of a container that ended; empty if it is not available."""
        from kubernetes.client.exceptions import ApiException

        with contextlib.suppress(ApiException):
            got = self.core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=CONTAINER,
                previous=True,
                tail_lines=_LOG_LINES,
                _preload_content=False,
                _request_timeout=REQUEST,
            )
            return " / ".join(got.data.decode(errors="replace").strip().splitlines())
        return ""

    def replace_pod(self, name: str, line: str) -> None:
        where = {"namespace": self.namespace, "_request_timeout": REQUEST}
        with self._translated_errors(f"replace pod {name}"):
            self.core.patch_namespaced_secret(self.pods.name, body={"data": secret(self.pods, line)["data"]}, **where)
            self._delete(self.core.delete_namespaced_pod, name, **where)

    @contextlib.contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        where = f"Kubernetes at {self._client.configuration.host}, namespace {self.namespace}"
        try:
            yield
        except ApiException as e:
            raise LaunchError(f"{where}: cannot {what}: {_words_of(e)}") from None
        except (HTTPError, OSError) as e:
            raise LaunchError(f"{where}: cannot {what}: {e}") from None


def _words_of(error: Any) -> str:
    """The API server's message, or the HTTP status."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(error.body)["message"])
    return f"{error.status} {error.reason}"


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


def events(stream: Any) -> Iterator[dict[str, Any]]:
    """Events of a watch, until it ends.

    ``kubernetes.watch.Watch`` would do, but before version 36 another thread cannot end it while it reads.
    """
    from urllib3.exceptions import HTTPError

    rest = b""
    try:
        for chunk in stream.stream(amt=None, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (json.loads(line) for line in lines if line.strip())
    except (HTTPError, OSError, AttributeError, ValueError):
        return  # closed by end(), or the network failed: the caller starts another watch
