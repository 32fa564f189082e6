"""Metadata of values: what is read, and that no code of the values' own classes runs."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
import torch

from jdist.core.messages.values import VariableFacts
from jdist.worker.variables.listing import MetadataReader, is_code, is_listable, matches

RAN: list[str] = []


class Loud(type):
    """A class of classes all of whose hooks are recorded."""

    def __eq__(cls, other: object) -> bool:
        RAN.append("type.__eq__")
        return False

    def __hash__(cls) -> int:
        RAN.append("type.__hash__")
        return 1

    @property
    def __name__(cls) -> str:
        RAN.append("type.__name__")
        return "x"

    def __getattribute__(cls, name: str) -> Any:
        RAN.append(f"type.{name}")
        return super().__getattribute__(name)


class Hostile(metaclass=Loud):
    def __getattribute__(self, name: str) -> Any:
        RAN.append(name)
        raise RuntimeError(name)

    def __len__(self) -> int:
        RAN.append("__len__")
        raise RuntimeError

    def __repr__(self) -> str:
        RAN.append("__repr__")
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        RAN.append("__eq__")
        raise RuntimeError

    def __hash__(self) -> int:
        RAN.append("__hash__")
        raise RuntimeError


class Liar:
    @property
    def __class__(self) -> Any:
        RAN.append("__class__")
        return torch.Tensor


class LongDict(dict[str, int]):
    def __len__(self) -> int:
        RAN.append("dict.__len__")
        return 10**9


class Wrapped(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        RAN.append("__torch_function__")
        raise RuntimeError


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)
        self.shared = self.inner

    def parameters(self, recurse: bool = True) -> Any:
        RAN.append("parameters")
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        RAN.append(name)
        return super().__getattr__(name)


def read(value: object) -> VariableFacts:
    return MetadataReader().read("x", value)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Hostile, "Hostile"),
        (Liar, "Liar"),
        (lambda: torch.ones(2).as_subclass(Wrapped), "Wrapped"),
        (lambda: [Hostile(), Liar()], "list"),
        (lambda: {1: Hostile()}, "dict"),
        (lambda: LongDict(a=1), "LongDict"),
    ],
)
def test_no_code_of_a_class_runs(make: Any, kind: str) -> None:
    value = make()
    RAN.clear()
    facts = read(value)
    assert is_code(value) is False
    assert RAN == []
    assert facts.type == kind
    assert facts.value == ""
    assert facts.shape is None


def test_a_subclass_of_dict_has_its_real_length() -> None:
    assert read(LongDict(a=1)).length == 1


def test_a_module_is_read_without_its_own_methods() -> None:
    net = Net()
    RAN.clear()
    facts = read(net)
    assert RAN == []
    assert (facts.type, facts.nbytes, facts.detail) == ("Net", 32, "8 parameters")
    assert (facts.dtype, facts.device) == ("float32", "cpu")


def test_a_lazy_module_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("this")
    assert spec is not None
    assert spec.loader is not None
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    kind = type(module)
    monkeypatch.setitem(sys.modules, "numpy", module)
    assert is_code(module)
    assert read(module).type == kind.__name__
    assert read(object()).type == "object"  # which looks for numpy's and pandas' types
    assert type(module) is kind


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors() -> None:
    facts = read(torch.zeros(3, 4, dtype=torch.bfloat16))
    assert facts == VariableFacts("x", "Tensor", (3, 4), "bfloat16", "cpu", nbytes=24)
    assert read(torch.nn.Parameter(torch.zeros(2))).detail == "requires grad"
    meta = read(torch.empty(1 << 40, device="meta"))
    assert (meta.shape, meta.device, meta.nbytes) == ((1 << 40,), "meta", 0)
    sparse = read(torch.eye(3).to_sparse())
    assert (sparse.nbytes, sparse.detail) == (None, "sparse_coo")
    nested = read(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]))
    assert nested == VariableFacts("x", "Tensor")  # torch has no shape for it
    lazy = read(torch.nn.LazyLinear(3))
    assert (lazy.type, lazy.detail) == ("LazyLinear", "0 parameters")


def test_arrays_and_numbers() -> None:
    facts = read(np.zeros((2, 3), np.int16))
    assert (facts.type, facts.shape, facts.dtype, facts.nbytes) == ("ndarray", (2, 3), "int16", 12)
    assert read(np.float32(0.5)).value == repr(np.float32(0.5))
    assert read(0.1).value == "0.1"
    assert read(None).value == "None"
    assert read(torch.device("cpu")).value == "device(type='cpu')"
    assert read(1 << 100_000) == VariableFacts("x", "int", detail="100,001 bits")


def test_texts() -> None:
    assert read("abc").value == "'abc'"
    assert read("\ud800").value == "'\\ud800'"  # which could not be sent as it is
    long = read("a" * 1_000_000)
    assert (long.value, long.length) == ("", 1_000_000)
    assert long.detail == f"'{'a' * 59}'…"


def test_containers_have_the_bytes_of_their_tensors() -> None:
    tensor = torch.zeros(4)
    facts = read({"a": tensor, "b": [tensor, torch.zeros(2)]})
    assert (facts.length, facts.nbytes) == (2, 24)
    assert read([1, 2]).nbytes is None
    huge = dict.fromkeys(range(100_000), tensor)
    assert read(huge).length == 100_000
    assert read(huge).nbytes is None
    circle: list[Any] = []
    circle.append(circle)
    assert read(circle).length == 1


def test_the_work_for_all_values_together_is_limited() -> None:
    reader = MetadataReader()
    items = [torch.zeros(1)] * 900
    found = [reader.read("x", list(items)) for _ in range(100)]
    assert found[0].nbytes == 4
    assert found[-1] == VariableFacts("x", "list", length=900)


def test_functions_and_classes() -> None:
    assert read(read).type == "function"
    assert read(len).type == "function"
    assert read(Net).type == "class"
    assert is_code(Net)
    assert is_code(sys)
    assert not is_code(Net())


def test_a_type_with_a_long_name() -> None:
    assert read(type("x" * 500, (), {})()).type == "x" * 79 + "…"


def test_which_names_are_listed() -> None:
    assert is_listable("größe")
    assert not is_listable("x" * 201)
    assert not is_listable("two words")
    assert not is_listable(3)
    assert matches("loss2", ("model", "loss*"))
    assert not matches("_x", ("*",))
    assert matches("_x", ("_*",))
