"""The pods that run a cluster's nodes in Kubernetes: a StatefulSet whose ordinals are the node ranks, as a manifest.

A restarted pod keeps its name and therefore its node rank. The join line is in a Secret, which each pod's agent reads
on its standard input, so it appears in no argv, environment or image. Nothing here needs the Kubernetes client.
"""

import base64
import re
from typing import Any

from msgspec import Struct

from jdist.core.errors import UsageError
from jdist.core.quantities import parse_count
from jdist.core.settings import Settings

MANAGED = "jdist"  # Value of the label app.kubernetes.io/managed-by, which marks an object as jdist's.
CONTAINER = "agent"
_SECRETS = "/etc/jdist"
_LINE = "join-line"
# The shell replaces itself; the pod's name ends with its ordinal.
_JOIN = 'exec "$0" -P -m jdist join --node-rank "${POD_NAME##*-}" "$@" - < ' + f"{_SECRETS}/{_LINE}"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"\d{1,12}(\.\d{1,3})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")

Object = dict[str, Any]


class PodSpec(Struct, frozen=True, kw_only=True):
    """The pods to run in Kubernetes, and where."""

    image: str  # Must contain jdist, torch and a POSIX shell.
    name: str
    nnodes: int
    nproc: int = 0  # Ranks on each node; 0: as the cluster's settings say.
    namespace: str = ""  # Empty: the namespace of the context in which the manifest is applied.
    service_account: str = ""  # Empty: the namespace's default, with no token in the pod.
    python: str = "python3"
    gpus: int = 0  # nvidia.com/gpu requested for each pod.
    cpu: str = ""
    memory: str = ""
    shm: str = "8Gi"  # Size limit of /dev/shm, by which a node's ranks exchange tensors; part of the pod's memory.
    user: int = 0  # User and group ID to run as; 0: the image's.
    pull_secret: str = ""
    env: tuple[tuple[str, str], ...] = ()
    fork: bool = True


def add_pod_arguments(parser: Any) -> None:
    """What can be said of the pods, here and in ``jdist manifest kubernetes``."""
    add = parser.add_argument
    add("--image", default="", help="image with the nodes' Python environment, including jdist")
    add("--namespace", default="", metavar="NS")
    add("--service-account", default="", metavar="NAME", help="service account of the pods; default: none")
    add("--python", default="python3", metavar="PATH", help="the interpreter in the image")
    add("--gpus", type=parse_count, nargs="?", const=-1, default=0, metavar="N", help="GPUs per pod; alone: one a rank")
    add("--cpu", default="", metavar="AMOUNT", help="requested for each pod, such as 8")
    add("--memory", default="", metavar="AMOUNT", help="request and limit, such as 64Gi")
    add("--shm", default="8Gi", metavar="AMOUNT", help="size limit of /dev/shm; default 8Gi")
    add("--user", type=parse_count, default=0, metavar="UID", help="run as this user and group instead of the image's")
    add("--pull-secret", default="", metavar="NAME", help="secret for the image's registry")


def pods_of(options: Any, name: str, settings: Settings, nproc: int = 0) -> PodSpec:
    """The pods that the parsed options describe. Raises UsageError for what the API server would refuse."""
    given = {field: value for field, value in vars(options).items() if field in PodSpec.__struct_fields__}
    if options.gpus < 0:
        counts = (nproc,) if nproc else settings.nproc_per_node
        if len(set(counts)) != 1:
            raise UsageError("kubernetes: --gpus needs a number, unless -n says how many ranks each node has")
        given["gpus"] = counts[0]
    own = {"name": name, "nnodes": settings.nnodes, "nproc": nproc, "env": settings.env, "fork": settings.fork}
    pods = PodSpec(**{**given, **own})
    if not pods.image:
        raise UsageError("kubernetes: --image is needed; it holds the Python environment of the nodes")
    for option in ("name", "namespace", "service-account", "pull-secret"):
        text = getattr(pods, option.replace("-", "_"))
        if text and not _NAME.fullmatch(text):
            raise UsageError(f"kubernetes: --{option} {text!r}: lower-case letters, digits and - are allowed")
    for option, text in {"cpu": pods.cpu, "memory": pods.memory, "shm": pods.shm}.items():
        if text and not _QUANTITY.fullmatch(text):
            raise UsageError(f"kubernetes: --{option} {text!r}: write an amount such as 4, 500m, 16Gi")
    return pods


def objects(pods: PodSpec, line: str) -> list[Object]:
    """Service, Secret and StatefulSet, in the order in which to apply them."""
    return [service(pods), secret(pods, line), stateful_set(pods)]


def selector(pods: PodSpec) -> dict[str, str]:
    """Labels that select the pods."""
    return {"app.kubernetes.io/managed-by": MANAGED, "app.kubernetes.io/instance": pods.name}


def _head(pods: PodSpec, kind: str, version: str) -> Object:
    metadata: Object = {"name": pods.name, "labels": selector(pods)}
    if pods.namespace:
        metadata["namespace"] = pods.namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def service(pods: PodSpec) -> Object:
    """Headless service, which gives each pod a DNS name even before the pod is ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(pods)}
    return {**_head(pods, "Service", "v1"), "spec": spec}


def secret(pods: PodSpec, line: str) -> Object:
    """Secret that holds the join line."""
    data = {_LINE: base64.b64encode(f"{line.strip()}\n".encode()).decode()}
    return {**_head(pods, "Secret", "v1"), "type": "Opaque", "data": data}


def stateful_set(pods: PodSpec) -> Object:
    """StatefulSet that starts all pods at once and replaces each under its own name."""
    labels = selector(pods)
    spec = {
        "replicas": pods.nnodes,
        "serviceName": pods.name,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod(pods)},
    }
    return {**_head(pods, "StatefulSet", "apps/v1"), "spec": spec}


def _pod(pods: PodSpec) -> Object:
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(pods)},
    }
    spec: Object = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 45,
        "topologySpreadConstraints": [spread],
        "automountServiceAccountToken": bool(pods.service_account),
        "containers": [_container(pods)],
        "volumes": [
            {"name": "join-line", "secret": {"secretName": pods.name, "defaultMode": 0o440 if pods.user else 0o400}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shm}},
        ],
    }
    if pods.service_account:
        spec["serviceAccountName"] = pods.service_account
    if pods.pull_secret:
        spec["imagePullSecrets"] = [{"name": pods.pull_secret}]
    if pods.user:
        own = {"runAsUser": pods.user, "runAsGroup": pods.user, "fsGroup": pods.user}  # the group may read the Secret
        spec["securityContext"] = {"runAsNonRoot": True, **own, "seccompProfile": {"type": "RuntimeDefault"}}
    return spec


def _container(pods: PodSpec) -> Object:
    words = [*(["-n", str(pods.nproc)] if pods.nproc else []), *([] if pods.fork else ["--no-fork"])]
    # A user ID that is unknown to the image has no name and no home, which torch requires.
    homeless = {"HOME": "/tmp", "USER": MANAGED, "LOGNAME": MANAGED} if pods.user else {}
    own = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    variables = [{"name": k, "value": v} for k, v in {**homeless, **dict(pods.env)}.items()]
    gpus = {"nvidia.com/gpu": str(pods.gpus)} if pods.gpus else {}
    limits = {**({"memory": pods.memory} if pods.memory else {}), **gpus}
    requests = {**({"cpu": pods.cpu} if pods.cpu else {}), **limits}
    return {
        "name": CONTAINER,
        "image": pods.image,
        "command": ["sh", "-c", _JOIN, pods.python, *words],
        "env": [{"name": "POD_NAME", **own}, {"name": "JDIST_HOST", **own}, *variables],
        "resources": {k: v for k, v in {"requests": requests, "limits": limits}.items() if v},
        "volumeMounts": [
            {"name": "join-line", "mountPath": _SECRETS, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def to_yaml(documents: list[Object]) -> str:
    """One YAML document for each object."""
    import yaml

    return str(yaml.safe_dump_all(documents, explicit_start=True, sort_keys=False))
