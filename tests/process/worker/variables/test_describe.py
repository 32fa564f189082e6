"""Looking at values on a rank: finding, describing, and comparing them."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.core.errors import UsageError
from jdist.worker.variables import describe as describing
from jdist.worker.variables import digests as digesting
from jdist.worker.variables.describe import describe, evaluate
from jdist.worker.variables.digests import block_digests, chunks, digests, element

NAMES = {
    "model": torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()),
    "losses": [3.0, 2.0, 1.0],
    "cfg": SimpleNamespace(lr=0.1, sizes={"hidden": 4}),
    "double": lambda x: x * 2,
    "table": dict,
}


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        ("losses[-1]", 1.0),
        (" cfg.sizes['hidden'] ", 4),
        ("double(cfg.lr)", 0.2),
        ("[x for x in losses if x < losses[0]]", [2.0, 1.0]),
        ("(lambda y: y + len(losses))(1)", 4),
        ("model[0].weight.shape", (3, 2)),
    ],
)
def test_evaluate(expr: str, value: Any) -> None:
    assert evaluate(expr, NAMES) == value


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        ("los", r"there is no name 'los' on this rank; did you mean losses\?"),
        ("zzz", "there is no name 'zzz' on this rank; there is model, losses, cfg, double, table"),
        ("losses[", "no expression"),
        ("x = 1", "no expression"),
        ("cfg.lrr", r"a SimpleNamespace has no 'lrr' on this rank; did you mean lr\?"),
        ("model.weigth", "a Sequential has no 'weigth'"),
        ("losses[7]", "list index out of range; losses has length 3"),
        ("cfg.sizes['hiden']", r"cfg.sizes has no key 'hiden' on this rank; did you mean hidden\?"),
        ("table()['x']", r"table\(\)\['x'\]: KeyError: 'x'"),
    ],
)
def test_evaluate_says_what_is_missing(expr: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate(expr, NAMES)


def test_evaluate_changes_no_name() -> None:
    namespace = {"a": 1}
    assert evaluate("(b := a + 1)", namespace) == 2
    assert namespace == {"a": 1}


@given(st.lists(st.one_of(st.floats(-1e6, 1e6, width=32), st.just(float("nan"))), max_size=60), st.integers(1, 7))
@settings(deadline=None)
def test_statistics_are_torchs(values: list[float], chunk: int) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    kept = tensor[~tensor.isnan()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digesting.chunks, "__defaults__", (chunk,))
        row = describe(tensor)
    assert row.nan_count == len(values) - kept.numel()
    if not kept.numel():
        assert row.mean is row.std is row.norm is None
        return
    assert row.mean == pytest.approx(kept.mean().item(), abs=1e-6)
    assert row.norm == pytest.approx(kept.norm().item(), abs=1e-6)
    if kept.numel() > 1:
        assert row.std == pytest.approx(kept.std().item(), abs=1e-5)
    else:
        assert row.std is None


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.uint8, torch.bool, torch.float16],
    ids=str,
)
def test_statistics_of_every_kind_of_number(dtype: torch.dtype) -> None:
    row = describe(torch.tensor([[0, 1], [1, 1]]).to(dtype).t())
    assert (row.mean, row.std, row.nan_count) == (0.75, 0.5, 0)
    assert row.norm == pytest.approx(3**0.5)
    assert row.thumb == [[0, 1], [1, 1]]
    assert row.dtype == str(dtype).removeprefix("torch.")


def test_describe_tensor() -> None:
    row = describe(torch.ones(3, 100, requires_grad=True))
    assert (row.type, row.shape, row.dtype, row.device, row.nbytes) == ("Tensor", (3, 100), "float32", "cpu", 1200)
    assert row.thumb == [[1.0] * 64] * 3
    assert not row.sampled
    assert describe(torch.empty(0, 4)).nan_count == 0
    assert describe(torch.tensor(3.0)).std is None
    assert describe(torch.tensor([3 + 4j])).norm == 5
    assert describe(torch.tensor([3 + 4j])).mean is None
    assert describe(torch.empty(5, device="meta")).mean is None
    assert "sparse_coo" in describe(torch.eye(2).to_sparse()).detail
    assert describe(torch.nn.Parameter(torch.ones(1))).type == "Parameter"


def test_the_ends() -> None:
    row = describe(torch.tensor([2.0, math.nan, -3.0, 1.5]))
    assert (row.least, row.greatest) == (-3.0, 2.0)
    row = describe(torch.tensor([math.inf, 1.0]))
    assert (row.least, row.greatest) == (1.0, math.inf)
    assert describe(torch.tensor([math.nan])).least is None
    assert describe(torch.tensor([1j])).least is None
    large = torch.arange(300_000)
    assert (describe(large).least, describe(large).greatest) == (0, 299_999)


def test_the_picture_of_a_large_matrix_has_some_of_its_elements() -> None:
    thumb = describe(torch.arange(1000.0).reshape(1, 1000).expand(200, 1000)).thumb
    assert thumb is not None
    assert len(thumb) == len(thumb[0]) == 64
    assert (thumb[5][0], thumb[0][-1]) == (0, 999)
    assert thumb[0] == sorted(set(thumb[0]))


def test_a_very_large_tensor_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describing, "CHUNK", 10)
    monkeypatch.setattr(describing, "_EXACT", 40)
    row = describe(torch.full((1000,), 2.0))
    assert row.sampled
    assert (row.mean, row.std) == (2.0, 0.0)
    assert row.norm == pytest.approx((4 * 40) ** 0.5)


def test_describe_array() -> None:
    row = describe(np.array([[1.0, np.nan], [3.0, 5.0]])[::-1])
    assert (row.type, row.shape, row.dtype, row.mean, row.nan_count) == ("ndarray", (2, 2), "float64", 3.0, 1)
    fixed = np.arange(3)
    fixed.flags.writeable = False
    assert describe(fixed).mean == 1.0
    assert describe(np.array(["a"])).mean is None
    assert describe(np.array(1, dtype=">i4")).shape == ()
    assert describe(np.float32(2)).mean == 2.0
    assert describe(np.zeros(2, dtype=np.longdouble)).nbytes == 2 * np.dtype(np.longdouble).itemsize


def test_describe_everything_else() -> None:
    model = torch.nn.BatchNorm1d(3)
    model.bias.requires_grad_(requires_grad=False)
    row = describe(model)
    assert (row.type, row.dtype, row.detail) == ("BatchNorm1d", "float32", "6 parameters, 3 of them frozen")
    assert row.nbytes == 12 * 4 + 8
    frame = describe(pd.DataFrame({"a": [1], "b": [0.5]}))
    assert (frame.shape, frame.detail) == ((1, 2), "a int64, b float64")
    assert describe(pd.Series([1, 2])).dtype == "int64"
    assert describe({"a": 1}).length == 1
    assert describe("x" * 500).length == 500
    assert len(describe("x" * 500).detail) < 130
    assert describe(3).detail == "3"
    assert describe(None).type == "NoneType"
    assert describe(object()).length is None
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=describing.ValueDescription)
    assert again == row


@pytest.fixture
def mesh() -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield DeviceMesh("cpu", [0], mesh_dim_names=("dp",))
    torch.distributed.destroy_process_group()


def test_a_dtensor_is_described_and_digested_by_its_local_part(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    local = torch.arange(6.0).reshape(2, 3)
    dtensor = DTensor.from_local(local, mesh, [Shard(0)])
    row = describe(dtensor)
    assert (row.type, row.shape, row.mean, row.detail) == ("DTensor", (2, 3), 2.5, "local [2, 3]")
    assert row.placement == "(Shard(dim=0)) on mesh dp=1"
    assert digests(dtensor) == digests(local)


@st.composite
def blocks(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    tensor = torch.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    if shape:
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))[:: draw(st.integers(1, 2))]
    return tensor


@given(blocks(), st.data())
@settings(deadline=None)
def test_chunks_are_the_flat_elements(block: torch.Tensor, data: st.DataObject) -> None:
    stop = data.draw(st.integers(0, block.numel()))
    start = data.draw(st.integers(0, stop))
    limit = data.draw(st.integers(1, 10))
    for form in (block, block.numpy()):
        pieces = list(chunks(form, start, stop, limit))
        assert all(len(p) <= limit for p in pieces)
        assert [int(x) for p in pieces for x in p] == block.flatten().tolist()[start:stop]


@given(blocks(), st.data())
@settings(deadline=None)
def test_block_digests_lead_to_the_first_difference(block: torch.Tensor, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, block.numel() - 1))
    other = block.clone()
    where, _ = element(block, "", at)
    other[where] = -1
    obj, changed = {"w": block}, {"w": other}
    start, stop = 0, block.numel()
    while stop - start > 1:
        pair = [block_digests(o, "w", start, stop, 3) for o in (obj, changed)]
        first = next(i for i in range(3) if pair[0][i] != pair[1][i])
        spans = [len(p) for p in torch.tensor_split(torch.arange(stop - start), 3)]
        start += sum(spans[:first])
        stop = start + spans[first]
    assert start == at
    assert element(changed, "w", start) == (where, "-1")
    assert element(obj, "w", start)[1] == str(block[where].item())


def test_digests_by_key_path() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    found = digests(model)
    assert [key for key, _, _ in found] == [n for n, _ in [*model.named_parameters(), *model.named_buffers()]]
    assert found[0][:2] == ("0.weight", "float32 [3, 2]")
    assert {k: d for k, _, d in digests(model.state_dict())} == {k: d for k, _, d in found}
    nested = {"a": [torch.ones(1), {"b": 3}], "c": SimpleNamespace(lr=0.1)}
    assert [(k, m) for k, m, _ in digests(nested)] == [("a[0]", "float32 [1]"), ("a[1].b", "int"), ("c.lr", "float")]
    assert digests(torch.ones(3, 4))[0][:2] == ("", "float32 [3, 4]")
    assert digests({}) == digests({})
    assert [k for k, _, _ in digests(pd.DataFrame({"x": [1], "y": ["a"]}))] == ["index", "x", "y"]
    assert [k for k, _, _ in digests(pd.Series([1]))] == ["index", "values"]


def _same(a: Any, b: Any) -> bool:
    return digests(a) == digests(b)


def test_digests_compare_bits() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert _same(nan, nan.clone())
    assert not _same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert _same(torch.arange(6).reshape(2, 3).t(), torch.arange(6).reshape(2, 3).t().contiguous())
    assert not _same(torch.zeros(2, 3), torch.zeros(3, 2))
    assert not _same(torch.zeros(2, dtype=torch.int32), torch.zeros(2))
    assert _same(np.arange(6).reshape(2, 3).T, np.ascontiguousarray(np.arange(6).reshape(2, 3).T))
    assert _same(torch.eye(3).to_sparse(), torch.eye(3).to_sparse())
    assert not _same(torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse())
    assert _same(
        torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.complex64).conj().resolve_conj()
    )
    assert _same(float("nan"), float("nan"))
    assert not _same(1, 1.0)
    assert not _same(list(range(100)), list(range(99)))
    assert _same(np.array([None, "a"], dtype=object), np.array([None, "a"], dtype=object))
    assert not _same(lambda x: x + 1, lambda x: x + 2)


def test_a_container_that_holds_itself() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert [key for key, _, _ in digests(loop)] == ["[0]", "[1]"]


def test_digests_do_not_depend_on_the_process() -> None:
    code = (
        "from types import SimpleNamespace as N\n"
        "from jdist.worker.variables.digests import digests\n"
        "class C:\n    def __init__(self): self.x = {'a', 'b', 'c'}\n"
        "print(digests([C(), {'q', 'r', 's', 't'}, N(f=len, g=lambda x: x + 1, c=C), object(), (1, 'x'), b'y']))"
    )
    root = Path(describing.__file__).parents[3]
    command = [sys.executable, "-c", code]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env={"PYTHONHASHSEED": seed})
        for seed in "12"
    ]
    one, two = (process.communicate(timeout=60)[0] for process in running)
    assert one == two != ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor([[0.0, 0.1]]), "0.100000001"),
        (torch.tensor([[0.0, 0.1]], dtype=torch.float64), "0.1"),
        (torch.tensor([[0, 7]]), "7"),
        (np.array([["a", "b"]]), "'b'"),
        (torch.tensor([[1.0, 1.5]]).to(torch.float8_e5m2), "1.5"),
    ],
    ids=["float32", "float64", "int64", "str", "float8"],
)
def test_element(value: Any, text: str) -> None:
    assert element(value, "", 1) == ((0, 1), text)


def test_element_of_an_entry_without_elements_is_its_text() -> None:
    assert element({"w": "text"}, "w", 0) == ((), "'text'")
    assert len(element({"w": "x" * 500}, "w", 0)[1]) < 200


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: element({"w": torch.ones(2)}, "w", 2), "has 2 elements"),
        (lambda: element({"weight": torch.ones(2)}, "weigth", 0), r"no entry 'weigth' .*did you mean weight\?"),
        (lambda: block_digests({"w": "text"}, "w", 0, 1, 1), "w is a str on this rank, which has no elements"),
        (lambda: block_digests(torch.ones(2), "", 0, 3, 2), "0 to 3 is outside"),
    ],
)
def test_what_is_not_there_is_said(act: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        act()
