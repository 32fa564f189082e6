"""The private names of torch, ipykernel and IPython that jdist uses exist in the installed versions."""

from __future__ import annotations

import inspect
import pkgutil
from importlib.metadata import version

import pytest

from jdist.worker.compat import ipykernel as ipykernel_compat
from jdist.worker.compat import profiler, sharding, step
from jdist.worker.compat import rpc as rpc_compat
from jdist.worker.compat import torch as torch_compat


def names(private: dict[str, str]) -> list[tuple[str, str]]:
    return [(owner, name) for owner, listed in private.items() for name in listed.split()]


def installed(*packages: str) -> str:
    return ", ".join(f"{package} {version(package)}" for package in packages)


TORCH = torch_compat.PRIVATE | step.PRIVATE | rpc_compat.PRIVATE | profiler.PRIVATE | sharding.PRIVATE


@pytest.mark.parametrize(("owner", "name"), names(TORCH))
def test_torch_has(owner: str, name: str) -> None:
    assert hasattr(pkgutil.resolve_name(owner), name), f"{owner}.{name} is missing in {installed('torch')}"


@pytest.mark.parametrize(("owner", "name"), names(ipykernel_compat.PRIVATE))
def test_ipykernel_and_ipython_have(owner: str, name: str) -> None:
    found = pkgutil.resolve_name(owner)
    classes = [c for c in found.__mro__ if c.__module__.partition(".")[0] in ("ipykernel", "IPython")]
    is_set = any(f"self.{name} =" in inspect.getsource(c) for c in classes)  # an attribute that objects get when made
    assert hasattr(found, name) or is_set, f"{owner}.{name} is missing in {installed('ipykernel', 'ipython')}"


def test_torch_exports_the_symbols_by_which_a_receive_is_aborted() -> None:
    assert torch_compat._torch_cpu() is not None, f"{installed('torch')} exports no RecvWork::abort"
