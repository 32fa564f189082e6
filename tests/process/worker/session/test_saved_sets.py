"""Equal sets have equal pickles in processes whose hashes differ."""

from __future__ import annotations

import os
import subprocess
import sys

SOURCE = """
import sys
numbers_as_given = sys.argv[1] == "1"
import enum, io, torch
from jdist.worker.session.entries import Entries
from jdist.worker.session.sharding import MeshTable
from jdist.worker.session.saved_pickler import SetUnpickler
from jdist.worker.session.units import Collection

class Phase(enum.Enum):
    WARM, STEADY, LAST = range(3)

model = torch.nn.Linear(1, 1)
model.names = {"a", "b", "c", "d", "e"}
model.same = model.names
model.frozen = frozenset([b"x", b"y", b"z"])
model.numbers = {8, 0, 16} if numbers_as_given else {16, 8, 0}
model.mixed = {1, "a", b"a", None, 2.5, True, ("a", 1), frozenset(["b", "c", "d"]), Phase.LAST, torch.float32, int}
model.phases = set(Phase)
model.types = {torch.float16, torch.bfloat16, torch.float64, torch.device("cpu")}
values = {"model": model, "names": model.names}
meshes = MeshTable(1)
collection = Collection(values, {**values, "__name__": "__main__"}, Entries(torch.device("cpu"), meshes), meshes)
(unit,) = collection.collect("id")
print(unit.names, unit.pickle.hex())
print([*model.names], [*model.numbers])
"""
ROUND_TRIP = """
from jdist.worker.session import rebuild_saved as rebuild
entries = Entries(torch.device("cpu"), meshes)
with rebuild.loading(collection._entries.tensors, {}, ()):
    unpickler = SetUnpickler(io.BytesIO(unit.pickle))
    loaded = {name: unpickler.load() for name in unit.names}
one = loaded["model"]
assert one.names == {"a", "b", "c", "d", "e"} and one.names is one.same is loaded["names"]
assert one.frozen == frozenset([b"x", b"y", b"z"]) and type(one.frozen) is frozenset
assert one.numbers == {0, 8, 16} and one.types == model.types
assert {each.name for each in one.phases} == set(Phase.__members__) and one.phases & one.mixed
assert one.mixed - one.phases == model.mixed - model.phases
print("loaded")
"""


def run(source: str, seed: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    words = [sys.executable, "-c", source, str(seed)]
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=120, env=environment
    ).stdout.splitlines()


def test_equal_sets_have_equal_pickles_and_are_the_same_objects_again() -> None:
    first, second = run(SOURCE, 1), run(SOURCE + ROUND_TRIP, 2)
    assert first[1] != second[1], "the order of iteration differs"
    assert first[0] == second[0]
    assert second[2] == "loaded"
