"""Values to bytes and back: nothing changes but the address."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import io
import multiprocessing
import pickle
import queue
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import DataLoader

from jdist.core.errors import NotPicklable, NotRebuilt, ProtocolError, ShardedValue, TooLarge, UsageError
from jdist.core.messages.base import PayloadWire
from jdist.wire.values import objects, partition
from jdist.wire.values.objects import FORMAT, decode, encode
from jdist.wire.values.segments import Segment, layout, split

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16),
    *(torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]


def moved(obj: Any) -> Any:
    """``obj`` as it arrives: through memory laid out as a segment is."""
    payload, buffers = encode(obj)
    assert payload.sizes == tuple(len(b) for b in buffers)
    assert all(b.format == "B" and b.c_contiguous for b in buffers)
    view = memoryview(bytearray(layout(payload.sizes)[1]))
    for to, buffer in zip(split(view, payload.sizes), buffers, strict=True):
        to[:] = buffer
    return decode(payload, split(view, payload.sizes))


def test_functions_keep_the_file_name_of_their_code_and_of_functions_in_it() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def outer():\n    def inner(): 1 / 0\n    return inner", "/tmp/ipykernel_1/2.py", "exec"), names)
    with pytest.raises(ZeroDivisionError) as failed:
        moved(names["outer"])()()
    last = traceback.extract_tb(failed.tb)[-1]
    assert (last.filename, last.lineno) == ("/tmp/ipykernel_1/2.py", 2)


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@st.composite
def strided(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of random bits, any dtype, 0 to 4 dimensions, possibly permuted, strided or expanded."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    raw = torch.tensor(list(data), dtype=torch.uint8)
    if dtype is torch.bool:
        raw = raw % 2
    tensor = raw.view(dtype).reshape(shape)
    if shape:
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
        tensor = tensor[:: draw(st.integers(1, 3))]
        if draw(st.booleans()):
            tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
    return tensor


@given(strided())
@settings(deadline=None)
def test_any_strided_tensor(tensor: torch.Tensor) -> None:
    got = moved(tensor)
    assert (got.dtype, got.shape, bits(got)) == (tensor.dtype, tensor.shape, bits(tensor))
    nested = moved({"x": [tensor]})["x"][0]
    assert (nested.dtype, nested.shape, bits(nested)) == (tensor.dtype, tensor.shape, bits(tensor))


SIMPLE = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.byte_string_dtypes(),
)


@given(SIMPLE.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))), st.booleans())
@settings(deadline=None)
def test_any_array(array: np.ndarray[Any, Any], is_turned: bool) -> None:
    array = np.asarray(array.T[::-1] if is_turned and array.ndim else array)
    for got in (moved(array), moved([array])[0]):
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert got.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_by_name(dtype: torch.dtype) -> None:
    payload, buffers = encode(torch.zeros(3, 4, dtype=dtype))
    assert payload.summary == f"Tensor {str(dtype).removeprefix('torch.')} [3, 4]"
    assert decode(payload, buffers).dtype is dtype


def test_buffers_are_the_tensors_own_memory() -> None:
    tensor = torch.arange(6.0)
    _, [view] = encode(tensor)
    tensor[0] = 7
    assert memoryview(view).cast("f")[0] == 7
    del tensor
    gc.collect()
    assert memoryview(view).cast("f")[5] == 5


def test_a_tensor_is_built_on_a_writable_buffer_and_copied_from_another() -> None:
    payload, [view] = encode(torch.zeros(4))
    own, fixed = bytearray(view), bytes(view)
    decode(payload, [own])[0] = 1
    assert memoryview(own).cast("f")[0] == 1
    decode(payload, [fixed])[0] = 1
    assert not any(fixed)


def test_a_tensor_keeps_its_segment() -> None:
    payload, buffers = encode({"w": torch.arange(1000.0), "a": np.arange(1000)})
    total = layout(payload.sizes)[1]
    with Segment.create("testobjects", total) as sent:
        sent.fill(buffers)
        received = Segment.open(sent.path, total)
        sent.unlink()
    with received:
        got = decode(payload, split(received.view, payload.sizes))
    gc.collect()
    assert got["w"].sum() == got["a"].sum() == 499500
    got["w"] += 1


def test_an_unaligned_buffer_is_copied() -> None:
    tensor = torch.arange(4.0, dtype=torch.float64)
    payload, [view] = encode(tensor)
    for offset in range(9):
        assert torch.equal(decode(payload, [memoryview(bytes(offset) + view).cast("B")[offset:]]), tensor)
        got = decode(payload, [memoryview(bytearray(bytes(offset) + view))[offset:]])
        assert torch.equal(got, tensor)
        assert got.data_ptr() % 8 == 0


def test_requires_grad_and_parameters() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert moved(leaf).requires_grad
    result = moved(leaf * 2)
    assert not result.requires_grad
    assert result.tolist() == [2, 2]
    for frozen in (True, False):
        got = moved(torch.nn.Parameter(torch.ones(2), requires_grad=not frozen))
        assert type(got) is torch.nn.Parameter
        assert got.requires_grad is not frozen
        assert got.is_leaf


def test_conjugated_and_negated_views() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(moved(x.conj()), x.conj())
    assert torch.equal(moved(x.conj().imag), x.conj().imag)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout_name", ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
def test_sparse(layout_name: str) -> None:
    dense = torch.tensor([[0.0, 1.0, 0.0, 0.0], [2.0, 0.0, 0.0, 3.0]])
    blocks = {"blocksize": (1, 2)} if "_bs" in layout_name else {}
    sparse = dense.to_sparse(layout=getattr(torch, layout_name), **blocks)  # type: ignore[arg-type]
    got = moved(sparse)
    assert got.layout == sparse.layout
    assert torch.equal(got.to_dense(), dense)


def test_uncoalesced_sparse_stays_so() -> None:
    sparse = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), check_invariants=True)
    got = moved(sparse)
    assert not got.is_coalesced()
    assert moved(sparse.coalesce()).is_coalesced()
    assert torch.equal(got.to_dense(), sparse.to_dense())


def test_meta_tensor_has_no_bytes() -> None:
    got = moved(torch.empty(10**6, 10**6, device="meta"))
    assert got.is_meta
    assert got.shape == (10**6, 10**6)


def test_state_dict_has_a_small_head_and_keeps_ties() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
    model[1].weight = model[0].weight
    payload, buffers = encode(model.state_dict())
    assert payload.summary == "OrderedDict of 4"
    assert len(payload.head) < 4000
    assert payload.nbytes == sum(b.nbytes for b in buffers) >= 300 * 300 * 4
    got = moved(model)
    assert got[0].weight is got[1].weight
    assert all(torch.equal(a, b) for a, b in zip(got.parameters(), model.parameters(), strict=True))
    state = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.rand(300)}}, "param_groups": [{"lr": 0.1}]}
    assert torch.equal(moved(state)["state"][0]["exp_avg"], state["state"][0]["exp_avg"])
    assert moved(state)["state"][0]["step"] == 3


def test_dataframe() -> None:
    frame = pd.DataFrame({"a": np.arange(300), "b": np.arange(300) / 7, "c": [str(i) for i in range(300)]})
    pd.testing.assert_frame_equal(moved(frame), frame)
    assert encode(frame)[0].nbytes >= 300 * 8 * 2


@pytest.mark.parametrize(
    "value",
    [None, 3, "text", b"bytes", b"", bytearray(b"mutable"), [1, (2, {3})], {"a": None}, float("inf"), range(4), ...],
    ids=repr,
)
def test_plain_values(value: Any) -> None:
    got = moved(value)
    assert type(got) is type(value)
    assert got == value


def test_arrays_that_are_not_plain_bytes_are_pickled() -> None:
    records = np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])
    things = np.array([{"a": 1}, None], dtype=object)
    assert moved(records).dtype == records.dtype
    assert moved(records)["b"][0] == 2.5
    assert moved(things).tolist() == things.tolist()
    assert moved(np.ma.masked_array([1, 2], [True, False])).mask.tolist() == [True, False]


def test_a_class_defined_in_a_cell_travels_by_value() -> None:
    cell = types.ModuleType("__main__")
    exec("class Point:\n    def __init__(self, x): self.x = x\n    def twice(self): return self.x * 2", cell.__dict__)
    payload, buffers = encode(cell.Point(np.arange(1000.0)))
    code = (
        "import sys, msgspec; from jdist.wire.values.objects import PayloadWire, decode\n"
        "payload, buffers = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[PayloadWire, list[bytes]])\n"
        "print(decode(payload, buffers).twice()[[0, 1, 999]].tolist())"
    )
    sent = msgspec.msgpack.encode((payload, [bytes(b) for b in buffers]))
    root = Path(objects.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], input=sent, capture_output=True, timeout=120, cwd=root, check=False
    )
    assert done.stdout.decode().strip() == "[0.0, 2.0, 1998.0]", done.stderr.decode()


def test_importing_it_imports_no_torch() -> None:
    code = (
        "import sys, jdist.wire.values.objects as o, jdist.wire.values.partition, jdist.wire.values.segments\n"
        "o.decode(*o.encode({'a': [1]}))\n"
        "print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])"
    )
    root = Path(objects.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=root, check=True
    )
    assert done.stdout.strip() == "[]"


class Holder:
    def __init__(self, part: Any):
        self.part = part


def _closure() -> Any:
    lock = threading.Lock()
    return lambda: lock


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ((i for i in range(3)), "generator"),
        ({"a": [1, threading.Lock()]}, r"\['a'\]\[1\] is a lock"),
        (Holder({"it": iter(i for i in ())}), r"\.part\['it'\] is a generator"),
        (_closure(), "closes over lock is a lock"),
    ],
    ids=["generator", "dict", "object", "closure"],
)
def test_what_cannot_be_pickled_is_named(value: Any, path: str) -> None:
    with pytest.raises(NotPicklable, match=path):
        encode(value)


class Fails:
    """Its method raises what it was given."""

    def __init__(self, error: BaseException):
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error

    @property
    def shape(self) -> Any:
        raise self.error


class Unsayable(Exception):
    def __str__(self) -> str:
        raise SystemExit("on purpose")


class Exiting:
    """Ends the process in which it is made again."""

    def __reduce__(self) -> Any:
        return sys.exit, ("on purpose",)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit(), "SystemExit"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "CancelledError"),
        (ValueError("odd"), "ValueError: odd"),
        (Unsayable(), "Unsayable (its text raises SystemExit)"),
    ],
    ids=repr,
)
def test_a_method_that_exits_only_refuses_its_value(error: BaseException, text: str) -> None:
    for value, path in ((Fails(error), ""), ({"a": [Fails(error)]}, r"\['a'\]\[0\] is a Fails")):
        with pytest.raises(NotPicklable, match=f"{path}.*Fails.__reduce__ raised {re.escape(text)};"):
            encode(value)


def test_a_keyboard_interrupt_is_the_users_on_the_main_thread_only() -> None:
    """There it is a Stop; a value can raise one, too."""
    with pytest.raises(KeyboardInterrupt):
        encode(Fails(KeyboardInterrupt()))
    with ThreadPoolExecutor(1) as pool, pytest.raises(NotPicklable, match=r"__reduce__ raised KeyboardInterrupt"):
        pool.submit(encode, Fails(KeyboardInterrupt())).result()


def test_what_lives_in_a_process_is_refused_by_what_it_is(tmp_path: Path) -> None:
    class WithState(threading.Thread):
        def __reduce__(self) -> Any:
            return str, ("what it says itself",)

    async def coroutine() -> None: ...

    running = coroutine()
    path = tmp_path / "some.txt"
    path.write_text("content")
    with (
        path.open() as text,
        path.open("rb") as binary,
        path.open("a") as appended,
        gzip.open(tmp_path / "some.gz", "wb") as packed,
        tempfile.NamedTemporaryFile() as temporary,
        socket.socket() as sock,
        contextlib.closing(sqlite3.connect(":memory:")) as database,
        ThreadPoolExecutor(1) as pool,
    ):
        known = [
            *((file, "an open file") for file in (text, binary, appended, packed, temporary)),
            *((lock, "a lock") for lock in (threading.Lock(), threading.RLock())),
            (threading.Event(), "an event between threads"),
            (threading.Thread(), "a thread"),
            (threading.Timer(1, print), "a thread"),
            (multiprocessing.Process(), "a process"),
            (sock, "a socket"),
            (database, "an open database"),
            (pool, "an executor"),
            (queue.Queue(), "a queue between threads"),
            (running, "something that an event loop runs"),
            ((i for i in ()), "a generator"),
            (sys._getframe(), "a frame of a call"),
            (weakref.ref(pool), "a weak reference"),
            (iter(DataLoader([1])), "an iterator of a DataLoader"),
            (torch.distributed.HashStore(), "a rendezvous store"),
        ]
        for value, what in known:
            with pytest.raises(NotPicklable, match=f"^{what}( \\(.*\\))? cannot leave its process; take "):
                encode(value)
            with pytest.raises(NotPicklable, match=rf"^dict of 1 cannot .* \(\['a'\]\[1\] is {what}.*\); take "):
                encode({"a": (0, value)})
        with pytest.raises(NotPicklable, match=f"an open file \\({path}\\)"):
            encode(text)
    running.close()
    for value in (io.StringIO("a"), io.BytesIO(b"a")):
        assert moved(value).getvalue() == value.getvalue()
    assert moved(WithState()) == "what it says itself"
    assert moved([sys.stdout])[0] is sys.stdout


def test_alike_tensors_and_arrays_are_described_once() -> None:
    """The pickle of many small ones holds little but their bytes, and reading it makes no note for each."""
    for many in ([torch.zeros(3) for _ in range(1000)], {i: np.zeros(3) for i in range(1000)}):
        payload, buffers = encode(many)
        assert not buffers
        assert len(payload.head) < 60_000
        assert len(payload.head) < len(pickle.dumps(many))
    mixed = [torch.zeros(3), torch.ones(3).requires_grad_(), torch.nn.Parameter(torch.ones(3)), torch.arange(3)]
    mixed += [torch.zeros(3).bfloat16(), torch.ones(3).to_sparse(), torch.empty(3, device="meta"), torch.zeros(1000)]
    mixed += [torch.eye(4).t()[1], torch.zeros(3, dtype=torch.complex64).conj()]
    for sent, got in zip(mixed * 2, moved(mixed * 2), strict=True):
        assert (type(got), got.dtype, got.shape, got.layout) == (type(sent), sent.dtype, sent.shape, sent.layout)
        assert got.requires_grad == sent.requires_grad
        assert sent.is_meta or torch.equal(got.to_dense(), sent.to_dense())


def test_a_dtensor_is_refused_wherever_it_is() -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0], mesh_dim_names=("dp",))
        dtensor = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
        for value in (dtensor, {"w": dtensor}):
            with pytest.raises(ShardedValue, match="full=True") as caught:
                encode(value)
            assert isinstance(caught.value, TypeError)
    finally:
        torch.distributed.destroy_process_group()


def test_a_limit_stops_the_encoding() -> None:
    assert encode(torch.zeros(4), limit=1000)[0].nbytes == 16
    for big in (torch.zeros(1000), np.zeros(1000), bytes(2000), [torch.zeros(500)] * 1, list(range(10**5)), "a" * 2000):
        with pytest.raises(TooLarge, match="more than 1,000 bytes"):
            encode(big, limit=1000)


class Unwelcome:
    def __reduce__(self) -> Any:
        return int, ("not a number",)


def test_what_cannot_be_made_here_is_said() -> None:
    with pytest.raises(NotRebuilt, match="Unwelcome arrived but cannot be made here: ValueError"):
        moved(Unwelcome())
    with pytest.raises(NotRebuilt, match="Exiting arrived but cannot be made here: SystemExit: on purpose"):
        moved(Exiting())
    stream = pickle.dumps(np.float64).replace(b"numpy", b"numpz")
    head = objects._PickleHead(stream, objects.zlib.crc32(stream))
    with pytest.raises(NotRebuilt, match="No module named 'numpz'"):
        decode(PayloadWire(bytes([FORMAT]) + msgspec.msgpack.encode(head), (), 0, "type"), [])


SAMPLES = [torch.arange(6.0).reshape(2, 3), np.arange(5), b"abc", {"a": torch.arange(200.0)}, ["text"]]


@pytest.mark.parametrize("value", SAMPLES, ids=["tensor", "array", "bytes", "dict", "list"])
def test_malformed_payloads_are_protocol_errors(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncated, overlong, of another format, or with the wrong buffers; and nothing of them is unpickled."""
    payload, buffers = encode(value)
    change = msgspec.structs.replace

    def unpickle(*args: Any, **kwargs: Any) -> Any:
        pytest.fail("unpickled")

    monkeypatch.setattr(pickle, "loads", unpickle)
    heads = [payload.head[:n] for n in range(len(payload.head))] + [payload.head + b"\0", b"\x07" + payload.head[1:]]
    cases = [(change(payload, head=head), buffers) for head in heads]
    cases += [(payload, [*buffers, memoryview(b"")]), (change(payload, nbytes=payload.nbytes + 1), buffers)]
    if buffers:
        cases += [(payload, buffers[1:]), (payload, [buffers[0][:-1], *buffers[1:]])]
    if not isinstance(value, (dict, list)):
        more = bytes(buffers[0]) + b"\0" if not isinstance(value, bytes) else b""
        cases.append(
            (change(payload, sizes=() if not more else (len(more),), nbytes=len(more)), [more] if more else [])
        )
    for bad, bad_buffers in cases:
        with pytest.raises(ProtocolError):
            decode(bad, bad_buffers)


@given(st.sampled_from(SAMPLES[:3]), st.data())
@settings(deadline=None)
def test_a_damaged_head_of_raw_bytes_never_breaks_the_reader(value: Any, data: st.DataObject) -> None:
    payload, buffers = encode(value)
    head = bytearray(payload.head)
    head[data.draw(st.integers(0, len(head) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ProtocolError):
        got = decode(msgspec.structs.replace(payload, head=bytes(head)), buffers)
        # The damage hit a flag, or turned a dtype or shape into another of the same size.
        assert memoryview(encode(got)[1][0]).nbytes == payload.nbytes


@given(st.data())
def test_a_damaged_pickle_is_found_before_it_is_read(data: st.DataObject) -> None:
    payload, _ = encode(["some", {"plain": "value"}])
    start, end = payload.head.index(b"\x80\x05"), payload.head.rindex(b".") + 1
    head = bytearray(payload.head)
    head[data.draw(st.integers(start, end - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        decode(msgspec.structs.replace(payload, head=bytes(head)), [])


@given(st.integers(0, 9), st.integers(1, 5), st.integers(0, 1))
def test_slices_are_tensor_splits_and_concatenate_joins_them(length: int, n: int, dim: int) -> None:
    shape = (length, 2) if dim == 0 else (2, length)
    tensor = torch.arange(length * 2).reshape(shape)
    cuts = [partition.slice_along(tensor, dim, i, n) for i in range(n)]
    assert all(torch.equal(a, b) for a, b in zip(cuts, torch.tensor_split(tensor, n, dim), strict=True))
    assert torch.equal(partition.concatenate(cuts, dim), tensor)
    arrays = [partition.slice_along(tensor.numpy(), dim, i, n) for i in range(n)]
    assert np.array_equal(partition.concatenate(arrays, dim), tensor.numpy())
    items = list(range(length))
    assert partition.concatenate([partition.slice_along(items, 0, i, n) for i in range(n)]) == items


def test_parts_of_other_kinds() -> None:
    batch = {"x": torch.arange(4), "y": [1, 2, 3, 4]}
    halves = [partition.slice_along(batch, 0, i, 2) for i in range(2)]
    assert halves[1]["y"] == [3, 4]
    assert partition.concatenate(halves)["x"].tolist() == [0, 1, 2, 3]
    assert partition.concatenate([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
    assert partition.concatenate([1.5, 2.5]) == [1.5, 2.5]
    frame = pd.DataFrame({"a": [1, 2, 3]})
    pd.testing.assert_frame_equal(
        partition.concatenate([partition.slice_along(frame, 0, i, 2) for i in range(2)]), frame
    )


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: partition.slice_along(torch.ones(2), 1, 0, 2), "no dimension 1"),
        (lambda: partition.slice_along([1], 1, 0, 2), "dimension 0 only"),
        (lambda: partition.slice_along([1], 0, 2, 2), "no part 2 of 2"),
        (lambda: partition.slice_along(3, 0, 0, 2), "int cannot be cut"),
        (lambda: partition.concatenate([]), "no rank gave"),
        (lambda: partition.concatenate([torch.ones(1), [1]]), "different kinds"),
        (lambda: partition.concatenate([torch.ones(1, 2), torch.ones(1, 3)]), r"shapes \[1, 2\], \[1, 3\]"),
    ],
)
def test_parts_that_do_not_exist(act: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        act()


def test_a_tensor_while_another_thread_imports_dtensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", types.ModuleType("half imported"))
    payload, buffers = encode(torch.arange(3))
    assert decode(payload, [bytearray(b) for b in buffers]).tolist() == [0, 1, 2]
