"""Saves that cannot be completed, that were damaged, or that another Python wrote: nothing is left, nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jdist
from jdist.core.messages.saving import MANIFEST
from support import anatomy
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

MAKE = """
import functools
class Net(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
    def forward(self, x):
        return [self.inner(x + n) for n in range(2)][-1]
def outer(factor):
    def inner(x, *, shift=1):
        return x * factor + shift
    return inner
net, scaled, table = Net(), outer(3), torch.arange(1000.0)
twice = functools.partial(lambda x: 2 * x)
kept = rank + 1
"""
CHECK = "net(torch.ones(3)).shape[0], scaled(2), twice(4), table.sum().item()"
GIVES = (3, 7, 8, 499500.0)


@pytest.fixture(scope="module")
def own(run_traces: Traces) -> Iterator[jdist.Cluster]:
    with jdist.start(2, backend="gloo", name="damaged", timeout=60, idle_timeout=60) as cluster:
        run_traces.note_clusters()
        before = set(run_traces.exempt)
        run_traces.exempt |= {anatomy.controller(cluster), anatomy.agent(cluster, 0)}
        cluster.run(MAKE)
        yield cluster
        run_traces.exempt = before


FULL = """
import errno
from jdist.worker.session import folder
write = folder.write
def no_room(path, data):
    folder.write = write
    raise OSError(errno.ENOSPC, "No space left on device")
if rank == 1:
    folder.write = no_room
"""


def test_a_full_disk_leaves_nothing_of_the_save(own: jdist.Cluster, tmp_path: Path) -> None:
    own.run(FULL)
    with pytest.raises(jdist.JdistError, match=r"rank 1 .*No space left on device"):
        own.save(tmp_path / "d", "table")
    assert eventually(lambda: list((tmp_path / "d").iterdir()) == [])
    own.save(tmp_path / "d", "table")


def test_a_rank_that_dies_leaves_nothing_of_the_save(run_traces: Traces, tmp_path: Path) -> None:
    with jdist.start(2, backend="gloo", name="dying", timeout=60, idle_timeout=60) as cluster:
        held_up = "import threading\nfrom jdist.worker.session import folder\n"
        cluster.run(f"{held_up}x = 1\nif rank: folder.write = lambda *_: threading.Event().wait()")
        cluster.save(tmp_path / "d", "x", background=True)
        assert eventually(lambda: list((tmp_path / "d").iterdir()))
        anatomy.kill(anatomy.worker(cluster, 1))
        assert eventually(lambda: list((tmp_path / "d").iterdir()) == [])
        assert cluster.run("globals().get('x')", timeout=60).values[0] == 1


def manifest_with(**changes: object):  # type: ignore[no-untyped-def]
    def change(save: Path) -> None:
        found = json.loads((save / MANIFEST).read_text())
        (save / MANIFEST).write_text(json.dumps(found | changes))

    return change


def cut(pattern: str):  # type: ignore[no-untyped-def]
    def change(save: Path) -> None:
        path = max(save.glob(pattern), key=lambda found: found.stat().st_size)
        path.write_bytes(path.read_bytes()[:-20])

    return change


DAMAGES = {
    "more ranks than there are": (manifest_with(world_size=10**9), r"manifest\.json has been changed"),
    "no ranks": (manifest_with(world_size=0), r"manifest\.json has been changed"),
    "a manifest that was cut off": (cut(MANIFEST), r"manifest\.json is not a manifest"),
    "names that were cut off": (cut("names/rank-0.msgpack"), r"rank-0\.msgpack has been cut off"),
    "names that are gone": (lambda save: (save / "names/rank-1.msgpack").unlink(), r"rank-1\.msgpack cannot be read"),
    "tensors that were cut off": (cut("tensors/*.distcp"), "tensors cannot be read"),
    "no metadata": (lambda save: (save / "tensors/.metadata").unlink(), "tensors cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_save_is_named_by_its_file_and_changes_nothing(own: jdist.Cluster, tmp_path: Path, name: str) -> None:
    damage, says = DAMAGES[name]
    done = own.save(tmp_path / "d")
    damage(Path(done.folder))
    own.run("kept = rank + 10")
    with pytest.raises(jdist.UsageError, match=says):
        own.load(tmp_path / "d")
    assert own.run(f"{CHECK}, kept").values == {0: (*GIVES, 10), 1: (*GIVES, 11)}
    own.run("kept = rank + 1")


ANOTHER_PYTHON = "from jdist.worker.session import saved_pickler; saved_pickler._VERSION = (3, 99)"
THIS_PYTHON = "import sys; saved_pickler._VERSION = sys.version_info[:2]"


def test_functions_that_another_python_has_saved_are_compiled_from_their_source(
    own: jdist.Cluster, tmp_path: Path
) -> None:
    own.run("exec('def unknown(): return 1')")
    own.run("twins = [lambda: 1, lambda: 2]")
    own.save(tmp_path / "d")
    own.run(ANOTHER_PYTHON)
    try:
        own.run("del net, scaled, twice, Net, outer, unknown, twins")
        report = own.load(tmp_path / "d")
    finally:
        own.run(THIS_PYTHON)
    assert own.run(CHECK).values == {0: GIVES, 1: GIVES}
    why = {each.name: each.why for each in report.failed}
    assert set(why) == {"unknown", "twins"}
    assert "which Python 3.99 cannot run, and its source was not saved" in why["unknown"]
    assert "line 1 has 2 such functions" in why["twins"]
