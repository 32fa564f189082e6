from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jdist.core.import_path import ImportPath, Interpreter, merge, split, this_interpreter

HERE = Interpreter(frozenset({"/py/lib.zip", "/py/lib", "/py/lib/lib-dynload"}), ("/env/site-packages",), "/env/bin")
THERE = Interpreter(frozenset({"/other/lib"}), ("/other/site-packages",), "/other/bin")
OWN = ["/py/lib.zip", "/py/lib", "/py/lib/lib-dynload", "/env/site-packages"]


def as_it_is(entry: str) -> Sequence[str]:
    return (entry,)


def test_entries_are_told_apart_by_their_place() -> None:
    path = ["/inserted", "/pythonpath", *OWN[:3], "", "/py/lib", OWN[3], "/env/site-packages/vendored", "/appended"]
    assert split(path, "/work", HERE) == ImportPath("/work", ("/inserted", "/pythonpath"), ("",), ("/appended",))


def test_the_directory_of_a_program_and_what_is_no_text_are_left_out() -> None:
    assert split(["/env/bin", Path("/x"), *OWN], "/work", HERE) == ImportPath("/work")


def test_the_same_interpreter_gets_the_same_path() -> None:
    theirs = ["/inserted", "/pythonpath", *OWN[:3], "", OWN[3], "/editable", "/appended"]
    fresh = ["/pythonpath", *OWN, "/editable"]
    assert merge(fresh, split(theirs, "/work", HERE), HERE, as_it_is, first=True) == theirs


def test_another_interpreter_keeps_its_own_directories() -> None:
    wanted = split(["/inserted", *OWN[:3], "", OWN[3], "/appended"], "/work", HERE)
    assert merge(["/other/lib", "/other/site-packages"], wanted, THERE, as_it_is, first=True) == [
        "/inserted",
        "/other/lib",
        "",
        "/other/site-packages",
        "/appended",
    ]


def test_what_does_not_exist_is_left_out() -> None:
    wanted = ImportPath("/work", ("/here", "/gone"), ("",), ("/gone/too",))

    def resolve(entry: str) -> Sequence[str]:
        return () if entry.startswith("/gone") else (entry or "/work",)

    assert merge(OWN, wanted, HERE, resolve, first=True) == ["/here", *OWN[:3], "/work", OWN[3]]


def test_a_later_path_does_not_hide_what_an_earlier_one_finds() -> None:
    first = merge(OWN, ImportPath("/a", ("/a/src",), ("",), ("/a/more",)), HERE, as_it_is, first=True)
    both = merge(first, ImportPath("/b", ("/b/src", "/a/src"), ("", "/b"), ("/a/more",)), HERE, as_it_is, first=False)
    assert both == ["/a/src", "/b/src", *OWN[:3], "", "/b", OWN[3], "/a/more"]
    assert merge(both, ImportPath("/b", ("/b/src",), ("/b",)), HERE, as_it_is, first=False) == both


def test_nothing_of_an_interpreter_is_its_users() -> None:
    code = (
        "import os; from jdist.core.import_path import *; import sys; print(split(sys.path, '/', this_interpreter()))"
    )
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    shown = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("ImportPath(directory='/', before=('',), between=(), after=(")


def test_installed_files_are_told_from_the_users() -> None:
    found = this_interpreter()
    assert found.has_installed(os.__file__)
    assert found.has_installed(sys.modules["msgspec"].__file__ or "")
    assert not found.has_installed(__file__)
