"""What one process saves of its names and another loads, within one process: two namespaces and memory between them."""

from __future__ import annotations

import collections
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from jdist.core.errors import ProtocolError
from jdist.core.messages.membership import CarriedNames
from jdist.worker.session import from_memory as load_module
from jdist.worker.session import memory, state, to_memory
from jdist.worker.session.from_memory import load
from jdist.worker.session.memory import NamesReader, NamesWriter
from jdist.worker.session.rebuild import LostValue
from jdist.worker.session.to_memory import Save

Carry = Callable[..., tuple[dict[str, Any], CarriedNames]]


def shell(names: dict[str, Any]) -> Any:
    compile_ = SimpleNamespace(_filename_map={})

    def push(more: dict[str, Any], interactive: bool) -> None:
        assert not interactive
        names.update(more)

    return SimpleNamespace(user_ns=names, user_ns_hidden={}, compile=compile_, execution_count=1, push=push)


@pytest.fixture
def carry() -> Iterator[Carry]:
    """Runs a cell in one namespace and carries its names to another; that, and what has been reported."""
    fds: list[int] = []

    def carried(
        code: str, with_session: bool = False, own: tuple[str, ...] = ("torch",)
    ) -> tuple[dict[str, Any], CarriedNames]:
        names: dict[str, Any] = {"__name__": "__main__", "torch": torch, "In": ["", code], "Out": {}}
        before = shell(names)
        before.user_ns_hidden.update(names)
        exec(compile(code, "<cell>", "exec"), names)
        before.user_ns_hidden["__builtins__"] = names["__builtins__"]
        kept = state.take(before, names, {}) if with_session else {}
        fd, nbytes = Save(names, before.user_ns_hidden, kept, own.__contains__, lambda: None).write()
        fds.append(fd)
        after = shell({"__name__": "__main__", "torch": torch, "In": [""], "Out": {}})
        return after.user_ns, load(NamesReader(fd, nbytes), after, {})

    yield carried
    for fd in fds:
        os.close(fd)


def test_functions_have_the_namespace_as_their_globals_and_share_their_variables(carry: Carry) -> None:
    names, report = carry("""
n = 0
def count():
    global n
    n += 1
    return n
def factorial(k: int, start=1):
    '''A doc.'''
    return start if k < 2 else k * factorial(k - 1)
factorial.mark = factorial
def counter():
    c = 0
    def up():
        nonlocal c
        c += 1
        return c
    return up, lambda: c
up, seen = counter()
def outer():
    def deep(k):
        return 0 if not k else 1 + deep(k - 1)
    return deep
deep = outer()
class Base:
    def who(self): return "base", n
class Derived(Base):
    def who(self): return ("derived", *super().who())
    @property
    def twin(self): return Derived()
thing = Derived()
things = [thing, thing]
""")
    assert report == CarriedNames(12)
    assert names["count"]() == names["n"] == 1
    assert names["count"].__globals__ is names
    assert (names["factorial"](5), names["factorial"].__doc__, names["factorial"].mark) == (
        120,
        "A doc.",
        names["factorial"],
    )
    names["factorial"], old = lambda k: 7, names["factorial"]
    assert old(3) == 21, "a later definition counts"
    assert (names["up"](), names["up"](), names["seen"]()) == (1, 2, 2)
    assert names["deep"](4) == 4
    assert names["thing"].who() == ("derived", "base", 1)
    assert type(names["thing"].twin) is type(names["thing"]) is names["Derived"]
    assert names["things"] == [names["thing"]] * 2


def test_tensors_keep_gradients_leaves_and_shared_memory(carry: Carry) -> None:
    names, report = carry("""
base = torch.arange(12.0)
view = base.view(3, 4)[1:, ::2]
tied = torch.nn.Linear(3, 3)
head = torch.nn.Linear(3, 3, bias=False)
head.weight = tied.weight
leaf = torch.ones(3, requires_grad=True)
loss = (leaf * 2).sum()
loss.backward()
tied(torch.ones(3)).sum().backward()
buffered = torch.nn.BatchNorm1d(2)
half = torch.ones(2, dtype=torch.bfloat16)
sparse = torch.eye(3).to_sparse()
empty = torch.empty(0, 3)
meta = torch.empty(3, device="meta")
generator = torch.Generator().manual_seed(5)
marked = torch.ones(1)
marked.note = "mine"
""")
    assert not report.lost
    names["base"][6] = 50.0
    assert names["view"][0, 1] == 50.0
    assert names["view"].stride() == (4, 2)
    assert names["head"].weight is names["tied"].weight
    assert names["tied"].weight.grad.tolist() == [[1.0] * 3] * 3
    assert type(names["tied"].weight) is torch.nn.Parameter
    leaf, loss = names["leaf"], names["loss"]
    assert leaf.is_leaf
    assert leaf.requires_grad
    assert leaf.grad.tolist() == [2.0] * 3
    assert (loss.item(), loss.requires_grad) == (6.0, False), "what led to it is lost: no backward may seem to work"
    assert names["buffered"].running_var.tolist() == [1.0, 1.0]
    assert names["half"].dtype is torch.bfloat16
    assert torch.equal(names["sparse"].to_dense(), torch.eye(3))
    assert (names["empty"].shape, names["meta"].device.type) == ((0, 3), "meta")
    assert names["generator"].initial_seed() == 5
    assert names["marked"].note == "mine"
    names["base"].untyped_storage().resize_(4)  # it is memory of torch's own


def test_an_optimizer_goes_on_with_its_models_own_parameters(carry: Carry) -> None:
    code = """
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
def step():
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    scheduler.step()
    return model[0].weight.sum().item(), scheduler.get_last_lr()
for _ in range(3):
    step()
"""
    alone: dict[str, Any] = {"__name__": "__main__", "torch": torch}
    exec(code, alone)
    names, report = carry(code)
    assert not report.lost
    assert names["optimizer"].param_groups[0]["params"][0] is names["model"][0].weight
    assert names["scheduler"].optimizer is names["optimizer"]
    assert [names["step"]() for _ in range(3)] == [alone["step"]() for _ in range(3)]


def test_what_cannot_be_carried_is_named_where_it_is(carry: Carry) -> None:
    names, report = carry("""
import socket, sys, threading
gen = (i for i in range(3))
again = gen
sock = socket.socket()
sock.close()
file = open("/dev/null")
file.close()
thread = threading.Thread(target=print)
class Loader:
    def __init__(self):
        self.lock, self.items, self.it = threading.Lock(), [1, 2], iter(x for x in "ab")
        self.lock.acquire()
loader = Loader()
mixed = [1, {"deep": (x for x in "ab")}]
class Bad:
    def __reduce__(self): raise ValueError("not me")
bad = Bad()
class Late:
    def __setstate__(self, state): raise OSError("not here")
late = Late()
late.shared = shared = [1, 2]
both = shared
after = torch.ones(2)
""")
    assert dict(report.lost) == {
        "gen": "generator",
        "again": "generator",
        "sock": "socket",
        "file": "TextIOWrapper",
        "thread": "Thread",
        "loader.it": "generator",
        "mixed[1]['deep']": "generator",
        "bad": "Bad: not me",
        "late": "OSError: not here",
    }
    assert not {"gen", "again", "sock", "file", "thread", "bad", "late"} & names.keys()
    assert names["loader"].items == [1, 2]
    assert names["loader"].lock.acquire(blocking=False), "who held it is gone"
    lost = names["loader"].it
    assert isinstance(lost, LostValue)
    assert repr(lost) == "<a generator that was lost when this rank was started again>"
    assert not hasattr(lost, "send")
    assert names["shared"] == names["both"] == [1, 2]
    assert names["after"].tolist() == [1.0, 1.0], "names behind one that cannot be loaded are loaded"


def test_arrays_and_the_values_of_other_libraries(carry: Carry) -> None:
    # Python 3.12 has a limit of its own on recursion in C, which cannot be raised: pickle.dumps fails there as well.
    depth = 400 if sys.version_info[:2] == (3, 12) else 3000
    names, report = carry(
        f"""
depth = {depth}
import collections, dataclasses, enum, functools, numpy as np
arr, fortran, objects = np.arange(5), np.ones((2, 3), order="F"), np.array([{{"a": 1}}, None])
class Colour(enum.Enum):
    RED = 1
@dataclasses.dataclass
class Point:
    x: int = 3
point, red = Point(), Colour.RED
counter, double = collections.Counter("aab"), functools.partial(lambda a, b: a * b, 2)
rng = np.random.default_rng(3)
rng.random(4)
nested = None
for _ in range(depth):
    nested = [nested]
big = b"x" * 5_000_000
"""
    )
    assert not report.lost
    assert np.array_equal(names["arr"], np.arange(5))
    names["arr"][0] = 9
    assert names["fortran"].flags.f_contiguous
    assert names["objects"][0] == {"a": 1}
    assert names["red"] is names["Colour"].RED
    assert names["point"] == names["Point"]()
    assert (names["counter"], names["double"](4)) == (collections.Counter("aab"), 8)
    alone = np.random.default_rng(3)
    alone.random(4)
    assert names["rng"].random() == alone.random()
    assert len(names["big"]) == 5_000_000


def test_jdists_own_names_and_the_history_are_not_carried_as_names_and_the_session_is(
    carry: Carry, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/somewhere"])
    state = torch.get_rng_state()
    names, report = carry(
        """
rank, mine, _private = 3, 1, 2
_, __, _1, _i1 = 5, 6, 7, "x"
Out[1] = torch.ones(2)
""",
        with_session=True,
        own=("torch", "rank"),
    )
    assert report == CarriedNames(2)
    assert {"mine", "_private"} <= names.keys()
    assert not {"rank", "_i1"} & names.keys()
    assert names["_1"] is names["_"] is names["Out"][1]
    assert names["In"][1].startswith("\nrank")
    assert torch.equal(torch.get_rng_state(), state)


def test_without_memory_the_largest_name_is_left_out(carry: Carry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_memory, "free_memory", lambda: 100_000)
    names, report = carry("small, large = torch.ones(10), torch.ones(1_000_000)")
    assert dict(report.lost) == {"large": "4.0 MB, and 100 kB of memory were free to save it in"}
    assert names["small"].numel() == 10
    assert memory.free_memory() < 1 << 60


def test_where_no_memory_counts_as_free_small_names_are_carried(carry: Carry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: -(1 << 30))  # as a cgroup's count with its cached files says
    names, report = carry("n, words = 7, ['a', 'b']")
    assert (names["n"], names["words"], report.lost) == (7, ["a", "b"], ())


def test_a_proxy_of_what_is_gone_costs_itself_alone(carry: Carry) -> None:
    names, report = carry("import weakref\nclass Gone: pass\np = weakref.proxy(Gone())\nn = 7")
    assert names["n"] == 7
    assert [name for name, _ in report.lost] == ["p"]


SHARED = """
class Refuses:
    def __init__(self): self.x = 1
    def __setstate__(self, state): raise ValueError('no')
first = [['p'], Refuses(), ['q']]
a = [[f'el{i}'] for i in range(8)]
second = [Refuses()]
b = {'first': a[0], 'last': a[7]}
"""


def test_what_names_share_is_theirs_however_long_it_takes_to_go_on_behind_one_that_fails(
    carry: Carry, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = load_module._count_of

    def slow(data: bytes) -> int:
        time.sleep(0.2)
        return count(data)

    monkeypatch.setattr(load_module, "_LOOK", 0.02)
    monkeypatch.setattr(load_module, "_PATIENCE", 2)
    monkeypatch.setattr(load_module, "_count_of", slow)
    names, report = carry(SHARED)
    assert dict(report.lost) == {"first": "ValueError: no", "second": "ValueError: no"}
    assert names["b"] == {"first": ["el0"], "last": ["el7"]}
    assert names["b"]["first"] is names["a"][0]


GPUS = """
class OnGpu(torch.Tensor):
    device = property(lambda self: torch.device("cuda", 0))
first, second = torch.ones(3).as_subclass(OnGpu), torch.ones(3).as_subclass(OnGpu)
kept = [torch.ones(3)]
"""


def test_a_gpu_that_hangs_is_waited_for_once(carry: Carry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_memory, "_PATIENCE", 0.2)
    monkeypatch.setattr(to_memory, "_LOOK", 0.05)
    zeros, is_over = torch.zeros, threading.Event()

    def hanging(*size: int, device: torch.device) -> torch.Tensor:
        assert device.type == "cuda"
        is_over.wait()
        return zeros(*size)

    monkeypatch.setattr(torch, "zeros", hanging)
    try:
        names, report = carry(GPUS)
    finally:
        is_over.set()
    assert dict(report.lost) == {
        "first": "OnGpu: saving it took longer than 0.2 s",
        "second": "OnGpu: it is on cuda:0, which does not answer",
    }
    assert names["kept"][0].tolist() == [1.0, 1.0, 1.0]


def test_damaged_memory_is_refused() -> None:
    writer = NamesWriter(lambda: None)
    try:
        writer.write(b"abc")
        nbytes = writer.finish([("x", 0)], [(4, lambda: memoryview(b"1234"))], [])
        reader = NamesReader(writer.fd, nbytes)
        assert reader.pickle_of(0) == b"abc"
        with pytest.raises(ProtocolError, match="4 bytes where 5"):
            reader.read_buffer(0, memoryview(bytearray(5)))
        os.ftruncate(writer.fd, 10)
        with pytest.raises(ProtocolError):
            NamesReader(writer.fd, nbytes)
    finally:
        os.close(writer.fd)


def test_progress_is_reported_while_much_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_PROGRESS_EVERY", 0.0)
    reported = threading.Event()
    writer = NamesWriter(reported.set)
    writer.write(b"abc")
    os.close(writer.fd)
    assert reported.is_set()
