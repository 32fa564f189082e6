"""Join lines in files: found there, and told of where everybody can read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jdist.core.errors import UsageError
from jdist.wire.transport.invitations import exposure, find_line


def test_a_line_is_itself_or_what_a_file_holds(tmp_path: Path) -> None:
    (tmp_path / "line").write_text("jdist1.abc\n")
    assert find_line("jdist1.xyz") == "jdist1.xyz"
    assert find_line(str(tmp_path / "line")) == "jdist1.abc"
    for wrong in (str(tmp_path / "none"), "~nobody-of-this-name/line", "", "\0"):
        with pytest.raises(UsageError, match="neither a join line nor a file"):
            find_line(wrong)


@pytest.mark.parametrize(("mode", "is_exposed"), [(0o600, False), (0o440, False), (0o644, True), (0o604, True)])
def test_a_file_that_every_user_can_read_is_told_of(tmp_path: Path, mode: int, is_exposed: bool) -> None:
    path = tmp_path / "line"
    path.write_text("jdist1.abc\n")
    path.chmod(mode)
    assert (f"chmod 600 {path}" in exposure(str(path))) == is_exposed


@pytest.mark.parametrize("word", ["jdist1.abc", "-", "no such file", "~nobody-of-this-name/line"])
def test_what_is_no_file_exposes_nothing(word: str) -> None:
    assert exposure(word) == ""
