"""The private names of torch, ipykernel and IPython that jdist uses exist in the installed versions."""

from __future__ import annotations

import inspect
import pkgutil
from importlib.metadata import version

import pytest

from jdist.worker.compat import ipykernel as ipykernel_compat
from jdist.worker.compat import torch as torch_compat


def installed(*packages: str) -> str:
    return ", ".join(f"{package} {version(package)}" for package in packages)


@pytest.mark.parametrize("name", torch_compat.PRIVATE)
def test_torch_has(name: str) -> None:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as e:
        pytest.fail(f"{name} is missing in {installed('torch')}: {e}")


@pytest.mark.parametrize("name", ipykernel_compat.PRIVATE)
def test_ipykernel_and_ipython_have(name: str) -> None:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as e:
        pytest.fail(f"{name} is missing in {installed('ipykernel', 'ipython')}: {e}")


@pytest.mark.parametrize(("owner", "attribute"), ipykernel_compat.PRIVATE_ATTRIBUTES)
def test_objects_of_ipykernel_and_ipython_have(owner: str, attribute: str) -> None:
    sources = [
        inspect.getsource(c)
        for c in pkgutil.resolve_name(owner).__mro__
        if "kernel" in c.__module__ or "IPython" in c.__module__
    ]
    assert any(f"self.{attribute} =" in source for source in sources), (
        f"{owner} sets no {attribute} in {installed('ipykernel', 'ipython')}"
    )


def test_torch_exports_the_symbols_by_which_a_receive_is_aborted() -> None:
    assert torch_compat._torch_cpu() is not None, f"{installed('torch')} exports no RecvWork::abort"
