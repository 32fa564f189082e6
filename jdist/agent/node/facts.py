"""What all parts of an agent share, and the facts about its node, which are read without importing torch."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from jdist.agent.node.gpus import count_gpus
from jdist.agent.node.join_options import JoinOptions
from jdist.agent.starters.starter import CreateTask, Starter
from jdist.core.messages.base import Message
from jdist.core.messages.membership import NodeFacts
from jdist.wire.transport.invitations import Endpoint
from jdist.wire.transport.public_port import address_towards


@dataclass(frozen=True)
class NodeContext:
    """The node, its place in the launch, and the agent's ways to act."""

    zmq_context: Any
    endpoint: Endpoint  # Where the controller is reached.
    options: JoinOptions
    facts: NodeFacts
    directory: Path  # Sockets, logs and connection files of this agent; removed at its end.
    starter: Starter
    send: Callable[[Message], None]  # Sends to the controller.
    create_task: CreateTask

    @property
    def data_port(self) -> tuple[str, int]:
        return self.endpoint.host, self.endpoint.data_port


def node_facts(controller: tuple[str, int]) -> NodeFacts:
    """The node's facts for the agent's hello."""
    return NodeFacts(
        hostname=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        torch=_version("torch"),
        jdist=_version("jdist"),
        gpus=count_gpus(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        address=address_towards(controller),
        reached=controller[0],
        network=_network(),
        launcher_name=os.environ.get("JDIST_HOST", ""),
        torch_build=_torch_build(),
    )


def _network() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{os.stat('/proc/self/ns/net').st_ino:x}"
    except OSError:
        return ""


def interface_environment(address: str) -> dict[str, str]:
    """Variables that name the interface of ``address`` to gloo and NCCL, unless the user has set them."""
    # By default both take the interface that the host's own name resolves to, which other nodes may not reach.
    names = [n for n, found in psutil.net_if_addrs().items() if address in {a.address.partition("%")[0] for a in found}]
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {v: names[0] for v in variables if names and v not in os.environ}


def _torch_build() -> str | None:
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return None
    try:
        return read_torch_build(Path(found.origin).with_name("version.py").read_text(encoding="utf-8"))
    except OSError:
        return None


def read_torch_build(text: str) -> str | None:
    """What torch was built for by its ``torch/version.py``; None for a text that does not say."""
    found = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(None|'[^'\n]+')$", text, re.MULTILINE))
    if "cuda" not in found:
        return None
    builds = {"CUDA": found["cuda"], "ROCm": found.get("hip", "None")}
    return next((f"{name} {version[1:-1]}" for name, version in builds.items() if version != "None"), "CPU")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
