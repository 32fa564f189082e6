"""The file that export writes: it replaces its own, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from jdist.core.errors import UsageError
from jdist.notebook.export import marked, write


def test_a_file_that_export_wrote_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    write(str(path), "x = 1\n", force=False)
    write(str(path), "x = 2\n", force=False)
    assert path.read_text() == marked("x = 2\n")
    assert [p.name for p in tmp_path.iterdir()] == ["a.py"]


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ("mine = 1\n", "was not written by export"),
        ("", "was not written by export"),
        (marked("x = 1\n") + "y = 2\n", "was edited after export wrote it"),
        (marked("x = 1\n").replace("x = 1", "x = 3"), "was edited after export wrote it"),
        (marked("x = 1\n").replace("\n", "\r\n"), "export"),
    ],
)
def test_the_users_own_work_is_not_overwritten(tmp_path: Path, there: str, why: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(there, newline="")
    with pytest.raises(UsageError, match=f"{why}.*--force"):
        write(str(path), "x = 2\n", force=False)
    assert path.read_bytes() == there.encode()
    write(str(path), "x = 2\n", force=True)
    assert path.read_text() == marked("x = 2\n")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("absent/a.py", "folder"):
        with pytest.raises(UsageError, match=name.partition("/")[0]):
            write(str(tmp_path / name), "x = 1\n", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to(tmp_path / "a.py")
    write(str(tmp_path / "link.py"), "x = 1\n", force=False)
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "a.py").read_text() == marked("x = 1\n")
