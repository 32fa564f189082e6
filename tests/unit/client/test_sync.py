"""Listing: what of a folder is synced, and what is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jdist.client.attachment import Attachment
from jdist.client.sync import ModuleSource, SyncedCode, SyncSource
from jdist.client.variables.carrier import Carrier
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.code import ApplyTree, CompareTree, ModuleRequest, SourceTree, TreeApplied, TreeCompared
from jdist.core.messages.status import ClusterFacts
from support.waits import eventually


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def wait_for_clock(folder: Path) -> None:
    """Until a file that is written now has a later time than any before."""
    newest = max(path.lstat().st_ctime_ns for path in (folder, *folder.rglob("*")))
    probe = folder.parent / "probe"
    assert eventually(lambda: probe.touch() or probe.stat().st_ctime_ns > newest)


def listed(root: Path, *exclude: str) -> list[str]:
    return [e.path for e in SyncSource(str(root), exclude).list().entries]


def test_files_are_listed_and_rubbish_is_not(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "p/b.py", ".git/config", "p/__pycache__/b.pyc", "c.pyc", ".ipynb_checkpoints/x", ".hidden")
    assert listed(tmp_path) == [".hidden", "a.py", "p/b.py"]


def test_gitignore_files_speak_of_what_is_below_them_and_the_nearest_counts(tmp_path: Path) -> None:
    make(
        tmp_path, "a.log", "p/a.log", "p/keep.log", "build/x", "p/build", "q/data/big", "q/data.py", "r.txt", "p/r.txt"
    )
    (tmp_path / ".gitignore").write_text("# noise\n*.log\nbuild/\n/r.txt\n")
    (tmp_path / "p" / ".gitignore").write_text("!keep.log\n")
    (tmp_path / "q" / ".gitignore").write_text("data/\n")
    assert listed(tmp_path) == [
        ".gitignore",
        "p/.gitignore",
        "p/build",
        "p/keep.log",
        "p/r.txt",
        "q/.gitignore",
        "q/data.py",
    ]


def test_the_gitignore_of_the_repository_above_counts_and_what_is_above_that_does_not(tmp_path: Path) -> None:
    make(tmp_path, "repo/.git/config", "repo/src/a.py", "repo/src/out/x", "repo/src/b.tmp")
    (tmp_path / "repo" / ".gitignore").write_text("src/out/\n")
    (tmp_path / ".gitignore").write_text("*.tmp\n")
    assert listed(tmp_path / "repo" / "src") == ["a.py", "b.tmp"]


def test_what_the_user_excludes_is_left_out_and_taken_back(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "data/x", "notes.md", "secret.log")
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert listed(tmp_path, "data/", "*.md", "!secret.log") == [".gitignore", "a.py", "secret.log"]


def test_links_inside_are_kept_relative(tmp_path: Path) -> None:
    make(tmp_path, "p/a.py")
    (tmp_path / "p" / "l.py").symlink_to("a.py")
    (tmp_path / "up").symlink_to(tmp_path / "p")
    (tmp_path / "p" / "broken").symlink_to("nowhere")
    found = {e.path: e.target for e in SyncSource(str(tmp_path)).list().entries}
    assert found == {"p/a.py": "", "p/broken": "nowhere", "p/l.py": "a.py", "up": "p"}


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "p/../../outside"])
def test_a_link_that_leads_out_is_refused_and_may_be_excluded(tmp_path: Path, target: str) -> None:
    root = tmp_path / "root"
    make(root, "a.py")
    (root / "l").symlink_to(target)
    with pytest.raises(UsageError, match=r"the link l leads out of .*root, to .*--exclude l"):
        listed(root)
    assert listed(root, "l") == ["a.py"]


def test_executable_bits_and_packages_are_seen(tmp_path: Path) -> None:
    make(tmp_path, "pkg/__init__.py", "pkg/run.sh")
    (tmp_path / "pkg" / "run.sh").chmod(0o755)
    tree = SyncSource(str(tmp_path / "pkg")).list()
    assert (tree.name, tree.is_package) == ("pkg", True)
    assert {e.path: e.is_executable for e in tree.entries} == {"__init__.py": False, "run.sh": True}
    assert not SyncSource(str(tmp_path)).list().is_package


def test_a_single_file_is_a_tree_of_its_own(tmp_path: Path) -> None:
    make(tmp_path, "m.py", "other.py")
    tree = SyncSource(str(tmp_path / "m.py")).list()
    assert (tree.name, [e.path for e in tree.entries]) == ("m", ["m.py"])


def test_what_has_not_changed_is_the_same_tree_and_what_has_is_not(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    source = SyncSource(str(tmp_path))
    before = source.list()
    assert source.list() == before
    (tmp_path / "a").write_text("x")  # of the same length as before
    assert source.list() != before


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file or folder"):
        SyncSource(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="the whole file system"):
        SyncSource("/")


def test_of_a_requested_modules_directory_only_code_is_listed(tmp_path: Path) -> None:
    make(tmp_path, "helper.py", "p/x.py", "conf.yaml", "w.pt", "d/rows.csv", "nb.ipynb", ".env", ".venv/a.py")
    make(tmp_path, "__init__.py", "out/log")
    (tmp_path / ".gitignore").write_text("out/\n")
    (tmp_path / "data").symlink_to("/")
    (tmp_path / "same.py").symlink_to("helper.py")
    tree = ModuleSource(str(tmp_path)).list()
    assert [e.path for e in tree.entries] == ["__init__.py", "conf.yaml", "helper.py", "p/x.py", "same.py"]
    assert (tree.origin, tree.is_package) == (str(tmp_path), False)


def test_a_directory_that_has_not_changed_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "helper.py", "p/x.py", "empty/.gitignore")
    source = ModuleSource(str(tmp_path))
    source.list()
    assert source.may_have_changed()  # a change at the same moment would not be seen by its time
    monkeypatch.setattr("jdist.client.sync._RECENT", -(1 << 62))
    changes = (
        lambda: (tmp_path / "helper.py").write_text("helper.pY"),
        (tmp_path / "empty" / "fresh.py").touch,
        (tmp_path / "p" / "x.py").unlink,
        lambda: (tmp_path / "empty" / ".gitignore").write_text("fresh.py\n"),
    )
    for change in changes:
        tree = source.list()
        assert not source.may_have_changed()
        wait_for_clock(tmp_path)
        change()
        assert source.may_have_changed()
        assert source.list() != tree


@pytest.mark.parametrize("why", ["a home", "bytes", "files"])
def test_of_a_directory_that_is_large_or_a_home_only_what_is_requested_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    make(tmp_path, "helper.py", "helper2.py", "pkg/__init__.py", "pkg/deep/x.py", "other/y.py", ".ssh/id", "notes.txt")
    if why == "a home":
        monkeypatch.setenv("HOME", str(tmp_path))
    elif why == "bytes":
        sparse(tmp_path / "huge", 1_200_000_000)
    else:
        for number in range(10_000):
            (tmp_path / f"{number}.png").touch()
    make(tmp_path, "helper.log", "helper/1.txt")  # as a script writes them
    source = ModuleSource(str(tmp_path))
    source.requested = {"helper"}
    assert [e.path for e in source.list().entries] == ["helper.py"]
    source.requested.add("pkg")
    assert [e.path for e in source.list().entries] == ["helper.py", "pkg/__init__.py", "pkg/deep/x.py"]
    sparse(tmp_path / "pkg" / "huge", 60_000_000)
    with pytest.raises(UsageError, match=r"helper, pkg in .* has 60.0 MB that git does not ignore, more than 50.0 MB"):
        source.list()
    assert source.suggested("pkg") == str(tmp_path / "pkg")
    source.requested = {"helper"}
    (tmp_path / "helper.py").unlink()
    assert source.list().entries == (), "a deleted module does not stand for the whole directory"


def sparse(path: Path, nbytes: int) -> None:
    with path.open("wb") as f:
        f.truncate(nbytes)


def test_a_directory_that_was_sent_and_grows_is_not_reduced(tmp_path: Path) -> None:
    """The nodes would lose files that are there already."""
    make(tmp_path, "helper.py", "text.json")
    source = ModuleSource(str(tmp_path))
    source.synced = source.list()
    assert len(source.synced.entries) == 2
    sparse(tmp_path / "huge", 60_000_000)
    with pytest.raises(UsageError, match=r"has 60.0 MB that git does not ignore"):
        source.list()
    assert source.suggested("helper") == str(tmp_path)


def test_a_folder_without_modules_is_none(tmp_path: Path) -> None:
    make(tmp_path, "helper.py", "wandb/run/log.txt", "parts/one/two.py", "data.csv")
    source = ModuleSource(str(tmp_path))
    assert [name for name in ("helper", "parts", "wandb", "data", "other") if source.parts(name)] == ["helper", "parts"]


class ToNodes:
    """A link to two nodes, which have nothing of what is synced."""

    lost = ""

    def __init__(self) -> None:
        self.facts = ClusterFacts("c", "ready", 1, "gloo", 1, (2, 2), ("a", "b"), 4)
        self.applied: list[SourceTree] = []
        self.sent: asyncio.Queue[Message] = asyncio.Queue()

    async def query_nodes(self, nodes: Sequence[int], op: Message, _quiet: float) -> dict[int, Message]:
        await asyncio.sleep(0)
        if isinstance(op, CompareTree):
            return {n: TreeCompared(str(n), f"/tmp/{n}", ()) for n in nodes}
        assert isinstance(op, ApplyTree)
        changed = () if op.tree in self.applied else tuple(e.path for e in op.tree.entries)
        self.applied.append(op.tree)
        return {n: TreeApplied(changed, ()) for n in nodes}

    def send(self, message: Message) -> None:
        self.sent.put_nowait(message)


def test_ranks_that_request_one_module_are_told_the_same_and_names_of_directories_may_repeat(tmp_path: Path) -> None:
    make(tmp_path, "a/src/one.py", "b/src/two.py", "b/src/more.py")

    async def scene() -> None:
        link: Any = ToNodes()
        attachment = Attachment()
        attachment.current = link
        attachment.modules = {"one": str(tmp_path / "a/src"), "two": str(tmp_path / "b/src")}
        code = SyncedCode(attachment, Carrier(attachment))
        for rank, name in ((0, "one"), (1, "one"), (3, "two"), (2, "one"), (0, "gone")):
            attachment.receive(ModuleRequest(7, rank, name))
        replies = [await asyncio.wait_for(link.sent.get(), 10) for _ in range(5)]
        said = {(reply.rank, reply.name): reply.text for reply in replies}
        one = f"one is not on nodes 0-1: synced 1 file of {tmp_path}/a/src to them"
        assert [said[rank, "one"] for rank in range(3)] == [one] * 3
        assert said[3, "two"] == f"two is not on nodes 0-1: synced 2 files of {tmp_path}/b/src to them"
        assert said[0, "gone"] == ""
        assert {tree.name for tree in link.applied} == {"src", "src_"}, "whichever is read first has its name"
        assert {tree.origin for tree in link.applied} == {str(tmp_path / "a/src"), str(tmp_path / "b/src")}
        await code.close()

    asyncio.run(scene())


def test_a_module_that_cannot_be_synced_again_stays_on_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank requests it once more, for another file of its package, when it has become too large."""
    monkeypatch.setenv("HOME", str(tmp_path))
    make(tmp_path, "one/__init__.py", "two.py")

    async def scene() -> None:
        link: Any = ToNodes()
        attachment = Attachment()
        attachment.current = link
        attachment.modules = {"one": str(tmp_path), "two": str(tmp_path)}
        code = SyncedCode(attachment, Carrier(attachment))

        async def request(run: int, name: str) -> str:
            attachment.receive(ModuleRequest(run, 0, name))
            return str((await asyncio.wait_for(link.sent.get(), 10)).text)

        await request(1, "one")
        sparse(tmp_path / "one" / "huge", 60_000_000)
        assert "one was not synced" in await request(2, "one")
        (tmp_path / "one" / "huge").unlink()
        await request(3, "two")
        assert [e.path for e in link.applied[-1].entries] == ["one/__init__.py", "two.py"]
        await code.close()

    asyncio.run(scene())
