"""The private names of torch, ipykernel and IPython that jdist uses exist in the installed versions; where torch lacks
some, it costs their features alone."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from textwrap import dedent

import pytest

from jdist.core.errors import UsageError
from jdist.worker.compat import features
from jdist.worker.compat import ipykernel as ipykernel_compat
from jdist.worker.compat import torch as torch_compat
from jdist.worker.compat.features import FEATURES, Feature


def names(owners: dict[str, str]) -> list[tuple[str, str]]:
    return [(owner, name) for owner, listed in owners.items() for name in listed.split()]


def installed(*packages: str) -> str:
    return ", ".join(f"{package} {version(package)}" for package in packages)


def test_torch_lacks_nothing() -> None:
    assert features.lacks() == (), installed("torch")
    assert sum(len(each.names) for each in FEATURES) > 40


@pytest.mark.parametrize(("owner", "name"), names(ipykernel_compat.PRIVATE))
def test_ipykernel_and_ipython_have(owner: str, name: str) -> None:
    found = pkgutil.resolve_name(owner)
    classes = [c for c in found.__mro__ if c.__module__.partition(".")[0] in ("ipykernel", "IPython")]
    is_set = any(f"self.{name} =" in inspect.getsource(c) for c in classes)  # an attribute that objects get when made
    assert hasattr(found, name) or is_set, f"{owner}.{name} is missing in {installed('ipykernel', 'ipython')}"


def test_torch_exports_the_symbols_by_which_a_receive_is_aborted() -> None:
    assert torch_compat._torch_cpu() is not None, f"{installed('torch')} exports no RecvWork::abort"


# ---------------------------------------------------------------- a torch that lacks names


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Feature:
    monkeypatch.setattr(features, "FEATURES", [])
    return Feature("flying", {"torch.distributed": "all_reduce _wings", "torch.distributed:ProcessGroup": "_beak"})


def test_a_function_that_needs_an_absent_name_says_what_is_not_possible(lacking: Feature) -> None:
    fly = lacking.needed_by(lambda: "flown")
    with pytest.raises(
        UsageError, match=r"flying.*torch 2.*has no torch\.distributed\._wings, torch.*ProcessGroup\._beak"
    ):
        fly()
    assert Feature("walking", {"torch.distributed": "all_reduce"}).needed_by(lambda: "walked")() == "walked"


def test_a_function_that_torch_can_do_without_is_skipped(lacking: Feature) -> None:
    called: list[str] = []
    lacking.skips(lambda: called.append("flying"))()
    Feature("walking", {"torch.distributed": "all_reduce"}).skips(lambda: called.append("walking"))()
    assert called == ["walking"]


def test_only_modules_that_are_loaded_are_looked_at_where_it_shall_take_no_time(lacking: Feature) -> None:
    Feature("swimming", {"json.tool": "_fins"})
    sys.modules.pop("json.tool", None)
    assert [(lack.feature, lack.names) for lack in features.lacks_of_loaded()] == [("flying", lacking.absent)]
    assert "json.tool" not in sys.modules
    assert [lack.feature for lack in features.lacks()][:2] == ["flying", "swimming"]


def test_without_any_of_the_names_every_module_of_a_rank_can_be_imported() -> None:
    """The names are deleted once torch has used them itself, before jdist's modules are imported."""
    code = f"""
        import importlib, json, pkgutil, sys
        import torch, torch.distributed.rpc, torch.distributed.tensor, torch.distributed.fsdp
        import torch.distributed.checkpoint, torch.distributed.pipelining, torch.distributed._functional_collectives
        deleted = {[n for each in FEATURES for n in each.names]!r}
        for owner, name in deleted:
            if name == "_functional_collectives":
                sys.modules[f"{{owner}}.{{name}}"] = None
            found = pkgutil.resolve_name(owner)
            delattr(type(found) if hasattr(type(found), name) else found, name)
        import jdist.worker
        for module in pkgutil.walk_packages(jdist.worker.__path__, "jdist.worker."):
            if not module.ispkg:
                importlib.import_module(module.name)
        from jdist.worker.compat import features
        found = [name.rpartition(".")[2] for lack in features.lacks() for name in lack.names]
        print(json.dumps(found))
    """
    command = [sys.executable, "-c", dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == sorted(name for each in FEATURES for _, name in each.names)
