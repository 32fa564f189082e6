"""IPython shows jdist's errors as their messages, whatever has replaced its hooks, and all other errors as before."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jdist.core.errors import CellError
from jdist.notebook import magics
from jdist.notebook.error_display import Interrupted, show_shortly

FAILS = "def deep(depth):\n    if depth: deep(depth - 1)\n    raise CellError('rank 1 failed')\ndeep(5)"
RICH = "import rich.traceback\nrich.traceback.install();"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts its own in this place
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    InteractiveShell.clear_instance()
    shell: Any = InteractiveShell.instance()
    magics.load(shell)
    shell.push({"CellError": CellError, "Interrupted": Interrupted})
    yield shell
    magics.unload(shell)
    InteractiveShell.clear_instance()
    atexit.unregister(shell.atexit_operations)
    shell.atexit_operations()


def shown(shell: Any, code: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a cell shows that fails."""
    capsys.readouterr()
    assert not shell.run_cell(code).success
    return "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "before",
    [
        "",
        RICH,
        "%xmode Verbose",
        "%xmode Minimal",
        "from IPython.core import ultratb\nget_ipython().InteractiveTB = ultratb.VerboseTB()",
        "import sys\nfrom IPython.core import ultratb\nsys.excepthook = ultratb.VerboseTB()",
        "get_ipython().showtraceback = lambda *_, **__: print('replaced')",
        "get_ipython()._showtraceback = lambda *_, **__: print('replaced')",
        f"{RICH}\nget_ipython().set_custom_exc((), None)",
    ],
)
def test_an_error_of_jdist_is_its_message(shell: Any, before: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell(before).success
    assert shown(shell, FAILS, capsys).strip() == "CellError: rank 1 failed"
    assert shown(shell, "raise Interrupted('now')", capsys).strip() == "KeyboardInterrupt: now"
    assert sys.last_value is shell.last_execution_result.error_in_exec, "%debug and %tb need it"


def test_rich_shows_all_other_errors(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell(RICH)
    for _ in range(2):
        shown(shell, FAILS, capsys)
        text = shown(shell, "def f():\n    return 1 / 0\nf()", capsys)
        assert "in f:2" in text
        assert "╭" in text


def test_where_a_magic_shows_an_error_itself_it_is_the_message_too(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(RICH)
    capsys.readouterr()
    shell.run_cell(FAILS.replace("\ndeep(5)", "\ntry: deep(5)\nexcept CellError: get_ipython().showtraceback()"))
    assert "".join(capsys.readouterr()).strip() == "CellError: rank 1 failed"
    shell.run_cell("try: 1 / 0\nexcept Exception: get_ipython().showtraceback()")
    assert "╭" in "".join(capsys.readouterr())


def test_an_error_with_a_group_of_errors_behind_it_is_its_message(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "try: raise ExceptionGroup('two', [ValueError(1)])\nexcept ExceptionGroup: raise CellError('one') from None"
    assert shown(shell, code, capsys).strip() == "CellError: one"


def test_a_handler_of_the_users_own_goes_on(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    magics.unload(shell)
    seen: list[str] = []
    shell.set_custom_exc((ValueError,), lambda _, __, error, ___, tb_offset=None: seen.append(str(error)))
    end = show_shortly(shell, show_shortly.__code__)
    assert shown(shell, FAILS, capsys).strip() == "CellError: rank 1 failed"
    shown(shell, "raise ValueError('mine')", capsys)
    assert seen == ["mine"]
    end()
    assert shell.custom_exceptions == (ValueError,)
    magics.load(shell)


def test_pdb_is_started_in_code_of_the_user_only(
    shell: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []
    monkeypatch.setattr(shell, "debugger", lambda *, force: started.append(force))
    shell.run_cell("%pdb on")
    assert "CellError: rank 1 failed" in shown(shell, FAILS, capsys)
    assert started == [True]
    assert "UsageError: %dist has no verb" in shown(shell, "%dist nothing", capsys)
    assert "no cluster is in use" in shown(shell, "%%dist\nx", capsys)
    assert started == [True]
