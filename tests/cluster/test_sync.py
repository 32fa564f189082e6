"""Code on the ranks: what changed is sent and nothing else, modules are read again, fresh ranks and nodes have it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import jdist
from jdist import commands
from jdist.client.sync import SyncedCode
from support.waits import eventually

Start = Callable[..., jdist.Cluster]


@pytest.fixture
def src(tmp_path: Path) -> Path:
    root = tmp_path / "src"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "__init__.py").write_text("from mod import f\n")
    (root / "data.bin").write_bytes(os.urandom(3 << 20))
    write(root, "one")
    return root


def write(root: Path, answer: str) -> None:
    text = f"ANSWER = {answer!r}\ndef f():\n    return ANSWER\nclass C:\n    def g(self):\n        return ANSWER\n"
    (root / "mod.py").write_text(text)


def test_code_is_synced_kept_up_to_date_and_goes_with_the_cluster(fresh_cluster: Start, src: Path) -> None:
    own = fresh_cluster(1, 2)
    moved: list[tuple[int, int]] = []
    first = own.sync(str(src), on_progress=lambda _what, done, total: moved.append((done, total)))
    size = sum(p.stat().st_size for p in src.rglob("*") if p.is_file())
    assert (first.files, first.sent, first.nbytes, first.nodes) == (3, 3, size, (0, 1))
    assert moved[-1] == (size, size)
    own.run("import mod, pkg\nfrom mod import f, C\nc = C()")
    assert own.run("f(), pkg.f(), c.g(), mod.__file__").values == dict.fromkeys(
        range(2), ("one", "one", "one", os.path.join(first.folder, "mod.py"))
    )

    again = own.sync(str(src))
    assert (again.sent, again.nbytes, again.changed, again.deleted) == (0, 0, (), ())

    write(src, "two")  # of the same length, and perhaps in the same second
    changed = own.sync(str(src))
    assert (changed.sent, changed.nbytes, changed.changed) == (1, (src / "mod.py").stat().st_size, ("mod.py",))
    assert set(own.run("f(), pkg.f(), c.g(), mod.f()").values.values()) == {("two",) * 4}

    own.restart(ranks=[1])
    assert own.run("import mod\nmod.f()", ranks=[1]).values == {1: "two"}

    (src / "mod.py").write_text("def f(:\n")
    own.sync(str(src))
    run = own.run("f()", ranks=[0])
    assert run.values == {0: "two"}
    assert "module mod has changed and cannot be loaded: SyntaxError" in run.outcomes[0].stderr

    (src / "data.bin").unlink()
    write(src, "six")
    gone = own.sync(str(src))
    assert (gone.changed, gone.deleted) == (("mod.py",), ("data.bin",))
    assert sorted(p for p in os.listdir(gone.folder) if p != "__pycache__") == ["mod.py", "pkg"]
    assert set(own.run("import mod\nmod.f()").values.values()) == {"six"}

    own.stop()
    assert not os.path.exists(os.path.dirname(first.folder))


def test_a_watched_folder_is_followed_and_a_node_that_comes_has_it(fresh_cluster: Start, src: Path) -> None:
    own = fresh_cluster(1)
    told: list[str] = []
    own.asynchronous.watch(lambda m: told.append(getattr(m, "text", "")))
    own.sync(str(src), watch=True)
    assert own.run("import mod\nmod.f()").values == {0: "one"}
    write(src, "two")
    assert eventually(lambda: own.run("mod.f()").values == {0: "two"}, 30)
    assert eventually(lambda: any("synced src: 1 file of 3 written" in t for t in told)), told
    (src / "link").symlink_to("/etc")
    assert eventually(lambda: any("the link link leads out" in t for t in told), 30)
    (src / "link").unlink()

    own.add_node(1)
    assert own.run("import mod\nmod.f()").values == {0: "two", 1: "two"}

    own.sync(str(src))  # not watched any more
    assert own.asynchronous.part(SyncedCode).watches == {}
    write(src, "new")
    assert own.sync(str(src)).changed == ("mod.py",)


def test_what_cannot_be_synced_is_refused_and_names_why(
    fresh_cluster: Start, src: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = fresh_cluster(1)
    other = tmp_path / "elsewhere" / "src"
    other.mkdir(parents=True)
    (other / "x.py").write_text("x = 1")
    own.sync(str(src))
    with pytest.raises(jdist.UsageError, match="is synced under the name src already"):
        own.sync(str(other))
    (src / "out").symlink_to("/etc")
    with pytest.raises(jdist.UsageError, match="the link out leads out"):
        own.sync(str(src))
    assert own.run("import mod\nmod.f()").values == {0: "one"}

    assert commands.main(["sync", "--cluster", own.name, str(src), "--exclude", "out", "--exclude", "*.bin"]) == 0
    assert "1 file deleted" in capsys.readouterr().out
    assert commands.main(["sync", "--cluster", own.name, str(src / "none")]) == 2


def test_a_package_is_imported_by_its_name_and_a_file_by_its_own(fresh_cluster: Start, tmp_path: Path) -> None:
    own = fresh_cluster(1)
    package = tmp_path / "mypkg"
    package.mkdir()
    (package / "__init__.py").write_text("from mypkg.inner import y\n")
    (package / "inner.py").write_text("y = 5\n")
    (tmp_path / "alone.py").write_text("z = 7\n")
    own.sync(str(package))
    own.sync(str(tmp_path / "alone.py"))
    assert own.run("import mypkg, alone\nmypkg.y, alone.z").values == {0: (5, 7)}
