"""Remedy text: suggested actions as a user types them, and that nothing below the front ends words them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jdist import commands
from jdist.core.errors import CellError, JdistError, Remedy, UsageError
from jdist.core.messages.observation import Verdict
from jdist.core.messages.status import Notice, Stopped
from jdist.notebook.text import remedy_text
from jdist.notebook.text.remedy_text import command, style, typed, worded, worded_errors

PACKAGE = Path(remedy_text.__file__).parents[2]
FLOORS = ("core", "wire", "worker", "agent", "controller", "launch", "client", "server")
AGAIN = Remedy("restart", "start a fresh one", "2-3")
WITHOUT = Remedy("remove", "go on without it", "node=1")


@pytest.mark.parametrize(
    ("remedy", "magic", "shell", "plain"),
    [
        (Remedy("interrupt", "x"), "%dist interrupt", "jdist interrupt", "interrupt"),
        (AGAIN, "%dist restart -r 2-3", "jdist restart -r 2-3", "restart ranks 2-3"),
        (WITHOUT, "%dist remove -r node=1", "jdist remove -r node=1", "remove rank node=1"),
        (Remedy("run_cell", "x", "1"), "%%dist -r 1", "jdist run -r 1 SCRIPT.py", "run cell rank 1"),
        (Remedy("attach", "x", name="c1"), "%dist attach c1", "jdist attach c1", "attach c1"),
    ],
)
def test_each_front_end_has_its_words(remedy: Remedy, magic: str, shell: str, plain: str) -> None:
    assert (command(remedy), str(remedy)) == (magic, plain)
    with style("command"):
        assert command(remedy) == shell
    assert command(remedy) == magic


def test_a_text_ends_with_its_suggested_actions() -> None:
    end = "it is gone; %dist restart -r 2-3 to start a fresh one, or %dist remove -r node=1 to go on without it"
    for said in (UsageError("it is gone", remedies=(AGAIN, WITHOUT)), Notice("it is gone", remedies=(AGAIN, WITHOUT))):
        assert worded(said) == end
    assert worded(Stopped("it is gone")) == "it is gone"


def test_an_error_leaves_a_front_end_worded_and_is_the_same_error() -> None:
    with pytest.raises(CellError) as caught, style("command"), worded_errors(), worded_errors():
        raise CellError("lost", run=7, remedies=(AGAIN,))
    assert (str(caught.value), caught.value.run) == ("lost; jdist restart -r 2-3 to start a fresh one", 7)


def test_a_program_reads_plain_words() -> None:
    error = UsageError("it is gone", remedies=(AGAIN,))
    verdict = Verdict(1, "missing", (1,), (0,), "why", remedies=(AGAIN,))
    assert str(error) == "it is gone; restart ranks 2-3 to start a fresh one"
    assert str(verdict) == "● run 1 cannot finish: why\n  → restart ranks 2-3  start a fresh one"
    assert issubclass(UsageError, JdistError)


def test_the_command_line_leaves_a_users_own_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["run", "--cluster", "%dist none", "%dist stop.py"]) == 2
    said = capsys.readouterr().err
    assert "'%dist none'" in said
    assert "jdist start" in said or "there is" in said
    assert typed("stop") == "%dist stop"


def test_no_floor_below_the_front_ends_words_a_verb() -> None:
    console_cell = '"%load_ext jdist\\n%dist attach {name}{named}"'  # the cell that JupyterLab inserts
    for floor in FLOORS:
        for path in (PACKAGE / floor).rglob("*.py"):
            text = path.read_text().replace(console_cell, "")
            assert not re.search(r"%dist\b", text), path
