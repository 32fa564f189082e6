"""What torch was built for is read from its own file, without importing it."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
import torch

import jdist.agent.node as node_module
from jdist.agent.node import node_facts, read_torch_build

HEAD = "from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n__version__ = '2.9.1'\ndebug = False\n"


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (HEAD + "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "CUDA 12.8"),
        (HEAD + "cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43484'\n", "ROCm 6.4.43484"),
        (HEAD + "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None\n", "CPU"),
        (HEAD + "cuda = '11.8'\n", "CUDA 11.8"),
        (HEAD + "cuda = None\n", "CPU"),
        (HEAD, None),
        ("", None),
        ("cuda = version()", None),
        ("cuda = ", None),
        ("\0", None),
    ],
)
def test_what_the_file_says(text: str, build: str | None) -> None:
    assert read_torch_build(text) == build


def test_a_carried_node_gives_an_address_of_its_own_and_none_of_its_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "own_addresses", lambda: ("10.0.0.3", "10.1.0.3"))
    interfaces = {"lo": "127.0.0.1", "eth0": "10.0.0.3", "eth1": "10.1.0.3"}
    monkeypatch.setattr(
        psutil, "net_if_addrs", lambda: {n: [SimpleNamespace(address=a)] for n, a in interfaces.items()}
    )
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    found = node_facts(("127.0.0.1", 1), is_carried=True)
    assert (found.address, found.reached, found.is_carried) == ("10.0.0.3", "", True)
    for arrived, expected in (("10.1.0.3", "10.1.0.3"), ("192.168.0.7", "10.0.0.3"), ("127.0.0.1", "10.0.0.3")):
        monkeypatch.setenv("SSH_CONNECTION", f"10.1.0.1 50000 {arrived} 22")
        assert node_facts(("127.0.0.1", 1), is_carried=True).address == expected
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.3 22")
    for name, expected in (("eth1", "10.1.0.3"), ("lo", "10.0.0.3"), ("none", "10.0.0.3")):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        assert node_facts(("127.0.0.1", 1), is_carried=True).address == expected


def test_the_torch_that_is_here() -> None:
    cuda, hip = torch.version.cuda, torch.version.hip
    expected = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU"
    assert node_facts(("127.0.0.1", 1)).torch_build == expected
