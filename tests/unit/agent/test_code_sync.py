"""The folder for code on a node: what stands in it is what was sent, and nothing else is touched."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from jdist.agent.code_sync import CodeFolder, has_origin
from jdist.core.errors import UsageError
from jdist.core.messages.code import SourceTree, TreeEntry
from jdist.wire.transport import keys

CLUSTER = "0123456789ab"


@pytest.fixture
def folder(runtime_directory: Path) -> Iterator[CodeFolder]:
    made = CodeFolder(CLUSTER)
    yield made
    made.close()
    assert not keys.code_directory(CLUSTER).exists()


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def tree(files: dict[str, bytes], executable: tuple[str, ...] = (), links: dict[str, str] | None = None) -> SourceTree:
    entries = [TreeEntry(p, len(d), digest(d), p in executable) for p, d in files.items()]
    entries += [TreeEntry(p, 0, b"", target=t) for p, t in (links or {}).items()]
    return SourceTree("t", tuple(entries))


def send(folder: CodeFolder, wanted: SourceTree, files: dict[str, bytes]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """As a client does: only what is lacking."""
    lacking = folder.missing(wanted)
    for data in files.values():
        if digest(data) in lacking:
            folder.store("t", digest(data), 0, data)
    return folder.apply(wanted)


def put(folder: CodeFolder, files: dict[str, bytes], **rest: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return send(folder, tree(files, **rest), files)  # type: ignore[arg-type]


def there(folder: CodeFolder) -> dict[str, bytes]:
    root = folder.path / "t"
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_what_was_sent_stands_and_what_is_there_is_not_lacking(folder: CodeFolder) -> None:
    files = {"a.py": b"x = 1", "p/b.py": b"y", "p/q/empty": b""}
    assert len(folder.missing(tree(files))) == 3
    assert put(folder, files) == (("a.py", "p/b.py", "p/q/empty"), ())
    assert there(folder) == files
    assert folder.missing(tree(files)) == ()
    assert put(folder, files) == ((), ())


def test_a_content_that_moves_is_not_lacking(folder: CodeFolder) -> None:
    put(folder, {"a": b"long content"})
    assert folder.missing(tree({"b/c": b"long content", "d": b"long content"})) == ()
    assert put(folder, {"b/c": b"long content", "d": b"long content"}) == (("b/c", "d"), ("a",))
    assert there(folder) == {"b/c": b"long content", "d": b"long content"}


def test_what_is_not_in_the_tree_goes_with_its_folders_and_bytecode(folder: CodeFolder) -> None:
    put(folder, {"p/a.py": b"1", "keep.py": b"2"})
    cache = folder.path / "t" / "p" / "__pycache__"
    cache.mkdir()
    (cache / "a.cpython-311.pyc").write_bytes(b"old")
    assert put(folder, {"keep.py": b"2"}) == ((), ("p/a.py",))
    assert [p.name for p in (folder.path / "t").iterdir()] == ["keep.py"]


def test_executable_bits_are_kept_and_follow(folder: CodeFolder) -> None:
    put(folder, {"run.sh": b"#!", "a": b"1"}, executable=("run.sh",))
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (folder.path / "t").iterdir()}
    assert modes == {"run.sh": 0o755, "a": 0o644}
    put(folder, {"run.sh": b"#!", "a": b"1"}, executable=("a",))
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (folder.path / "t").iterdir()}
    assert modes == {"run.sh": 0o644, "a": 0o755}


def test_files_links_and_folders_take_each_others_places(folder: CodeFolder) -> None:
    put(folder, {"a": b"1", "b/c": b"2"}, links={"l": "a"})
    assert os.readlink(folder.path / "t" / "l") == "a"
    put(folder, {"a/x": b"3", "b": b"4", "l": b"5"})
    assert there(folder) == {"a/x": b"3", "b": b"4", "l": b"5"}
    put(folder, {"x": b"6"}, links={"a": "x", "b": "a"})
    assert (folder.path / "t" / "b").resolve() == folder.path / "t" / "x"


def test_nothing_is_written_through_a_link_that_stands_in_the_way(folder: CodeFolder, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("untouched")
    root = folder.path / "t"
    root.mkdir()
    (root / "p").symlink_to(tmp_path)
    (root / "f").symlink_to(tmp_path / "mine")
    put(folder, {"p/mine": b"new", "f": b"new"})
    assert (tmp_path / "mine").read_text() == "untouched"
    assert there(folder) == {"p/mine": b"new", "f": b"new"}


def test_a_content_that_is_not_what_was_promised_changes_nothing(folder: CodeFolder) -> None:
    put(folder, {"a": b"old"})
    wanted = tree({"a": b"new", "b": b"also"})
    folder.store("t", digest(b"new"), 0, b"bad")
    folder.store("t", digest(b"also"), 0, b"also")
    with pytest.raises(UsageError, match="a did not arrive as it was sent"):
        folder.apply(wanted)
    assert there(folder) == {"a": b"old"}
    with pytest.raises(UsageError, match="did not arrive"):
        folder.apply(wanted)
    assert there(folder) == {"a": b"old"}


def test_paths_that_lead_out_are_refused_before_anything_is_done(folder: CodeFolder) -> None:
    for bad in (SourceTree("..", ()), tree({"../x": b"1"}), tree({}, links={"a": "../../x"})):
        with pytest.raises(UsageError):
            folder.missing(bad)
        with pytest.raises(UsageError):
            folder.apply(bad)
    with pytest.raises(UsageError):
        folder.store("../t", digest(b""), 0, b"")
    with pytest.raises(UsageError):
        folder.store("t", b"../../x", 0, b"")


def test_agents_of_one_host_share_it_and_the_last_removes_it(folder: CodeFolder) -> None:
    other = CodeFolder(CLUSTER)
    assert other.path == folder.path
    assert other.place == folder.place
    put(folder, {"a": b"1"})
    other.close()
    assert there(folder) == {"a": b"1"}


def test_a_folder_that_nobody_holds_is_swept_and_one_in_use_is_not(folder: CodeFolder) -> None:
    put(folder, {"a": b"1"})
    dead = keys.code_directory("ba9876543210")
    dead.mkdir(mode=0o700)
    keys.lock_file(dead).touch()
    keys.sweep("ba9876543210")
    keys.sweep(CLUSTER)
    assert not dead.exists()
    assert there(folder) == {"a": b"1"}


def test_a_folder_that_somebody_else_could_have_made_is_not_used(runtime_directory: Path) -> None:
    taken = [keys.code_directory("ba9876543210", number) for number in range(9)]
    for path in taken[:2]:
        path.mkdir()
        path.chmod(0o777)
    try:
        first, second = CodeFolder("ba9876543210"), CodeFolder("ba9876543210")
        assert first.path == second.path == taken[2]
        first.close()
        second.close()
        assert not taken[2].exists()
        for path in taken[2:]:
            path.mkdir()
            path.chmod(0o777)
        with pytest.raises(PermissionError, match="not this user's own"):
            _ = CodeFolder("ba9876543210").path
        taken[8].rmdir()
        taken[0].rmdir()
        taken[0].symlink_to("nowhere")
        last = CodeFolder("ba9876543210")
        assert last.path == taken[8]
        last.close()
    finally:
        taken[0].unlink()
        for path in taken[1:8]:
            path.rmdir()


def test_the_newest_tree_comes_first_on_the_path_and_a_package_by_its_parent(folder: CodeFolder) -> None:
    folder.adopt("lib", False)
    folder.adopt("pkg", True)
    assert folder.folders == (str(folder.path), str(folder.path / "lib"))
    folder.adopt("lib", False)
    assert folder.folders == (str(folder.path / "lib"), str(folder.path))


def test_a_copy_takes_the_place_of_its_origin_until_it_is_synced_by_name(folder: CodeFolder) -> None:
    folder.adopt("lib", False)
    folder.adopt("mine", False, "/home/me/mine")
    assert folder.folders == (str(folder.path / "lib"),)
    assert folder.copies == {"/home/me/mine": str(folder.path / "mine")}
    folder.adopt("mine", False)
    assert (folder.folders, folder.copies) == ((str(folder.path / "mine"), str(folder.path / "lib")), {})


def test_a_node_that_shares_all_files_of_a_directory_has_it(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    assert has_origin(structs.replace(tree({"a.py": b"1"}), origin=str(tmp_path)))
    assert not has_origin(structs.replace(tree({"a.py": b"1", "b.py": b"2"}), origin=str(tmp_path)))
    assert not has_origin(tree({"a.py": b"1"}))
