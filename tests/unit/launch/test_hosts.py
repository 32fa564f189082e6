"""Hosts as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jdist.core.errors import UsageError
from jdist.core.settings import Host
from jdist.launch.hosts import parse_hosts, read_hostfile


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", (Host("a"),)),
        ("a:2,b:1", (Host("a", 2), Host("b", 1))),
        (" ada@a.b-c.org:12 , b", (Host("ada@a.b-c.org", 12), Host("b"))),
        ("10.0.0.1:2", (Host("10.0.0.1", 2),)),
        ("[fe80::1]:4,[::1]", (Host("fe80::1", 4), Host("::1"))),
    ],
)
def test_hosts(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", ",", "a:", "a:x", "a:-1", "a:0", "a b", "fe80::1", "a:2:3", "@a"])
def test_what_names_no_hosts(text: str) -> None:
    with pytest.raises(UsageError, match="--hosts"):
        parse_hosts(text)


def test_a_host_is_named_once() -> None:
    with pytest.raises(UsageError, match="names a twice; say a:RANKS once"):
        parse_hosts("a,b,a:2")


def test_a_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# rack\n\nbed1 slots=2\nbed2 slots=2 max_slots=4 # one more\nbed3 python=/o/py directory=/w\n")
    assert read_hostfile(file) == (Host("bed1", 2), Host("bed2", 2), Host("bed3", 0, "/o/py", "/w"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no host"),
        ("# none\n", "names no host"),
        ("a slots=x\n", "line 1: slots=x is no number"),
        ("a\nb slots\n", "line 2: 'slots' is none of"),
        ("a colour=red\n", "'colour=red' is none of"),
        ("a\na slots=2\n", "names a twice"),
    ],
)
def test_a_hostfile_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_hostfile(file)


def test_a_hostfile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_hostfile(tmp_path / "none")
