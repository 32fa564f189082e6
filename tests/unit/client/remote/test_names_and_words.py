"""What a start at another host is told, how clusters there are called, and what errors become on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from jdist.client.lifecycle.lifecycle import is_same_start
from jdist.client.lifecycle.sites import split_name
from jdist.client.lifecycle.start import make_settings, start_words
from jdist.client.remote.host import remote_host
from jdist.client.remote.login import is_denied
from jdist.client.remote.requests import Answer, encode_answer, refusal
from jdist.core.errors import LaunchError, Remedy, UsageError
from jdist.core.settings import Host
from jdist.notebook.options import at_dashes, start_options, start_parser


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nproc_per_node": "4"},
        {"nproc_per_node": "2,1", "nnodes": 2, "backend": "gloo"},
        {"env": {"A": "1", "B": "x y=z"}, "idle_timeout": 90.0, "timeout": 30.0},
        {"hosts": "a:2,b", "launcher": "ssh", "launcher_args": ["--python", "/opt/p y"]},
        {"fork": False, "warm": False, "on_death": "wait", "min_nodes": 1},
        {"bind_host": "10.0.0.1", "init_method": "tcp://h:0"},
    ],
    ids=str,
)
def test_the_words_of_a_start_are_read_back_as_its_options(options: dict[str, Any]) -> None:
    given = {name: value for name, value in options.items() if name != "launcher_args"}
    words, rest = at_dashes(start_words(given, options.get("launcher_args", ())))
    parsed = start_parser("start").parse(words)
    parsed.rest = rest
    found = start_options(parsed)
    assert {name: found[name] for name in options} == options


def test_hosts_may_be_given_one_by_one() -> None:
    assert start_words({"hosts": [Host("a", 2), Host("b")]}) == ["--hosts=a:2,b"]


def test_an_option_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="interrupt_grace"):
        start_words({"interrupt_grace": 1.0})


@pytest.mark.parametrize(
    ("name", "at", "found"),
    [
        (None, "", ("", None)),
        ("c1", "", ("", "c1")),
        (None, "login", ("login", None)),
        ("c1", "login", ("login", "c1")),
        ("login:c1", "", ("login", "c1")),
        ("login:", "", ("login", None)),
        ("me@login:c1", "other", ("me@login", "c1")),
        ("ssh://me@login:22:c1", "", ("ssh://me@login:22", "c1")),
    ],
)
def test_a_cluster_of_another_host_is_called_by_both_names(name: str | None, at: str, found: tuple[str, Any]) -> None:
    assert split_name(name, at) == found


@pytest.mark.parametrize(("name", "is_host"), [("a:c1", False), ("a", True), ("::1", True), ("ssh://a:22", True)])
def test_a_clusters_name_is_no_host(name: str, is_host: bool) -> None:
    async def scenario() -> None:
        assert remote_host(name) is remote_host(name)

    if is_host:
        asyncio.run(scenario())
    else:
        with pytest.raises(UsageError, match="a:c1 is a cluster's name; --at takes a host: a"):
            asyncio.run(scenario())


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        ("ssh a: me@a: Permission denied (publickey,password). Log in", True),
        ("ssh a: Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures", True),
        ("ssh a: Host key verification failed. Look at the key once, in a terminal: ssh a", True),
        ("ssh a: sh: /opt/python: Permission denied", False),
        ("ssh a: Could not resolve hostname a", False),
    ],
)
def test_only_what_the_user_can_change_is_a_denial(why: str, expected: bool) -> None:
    assert is_denied(why) == expected


def test_an_error_there_is_the_same_error_here() -> None:
    remedies = (Remedy("attach", "use it", name="c1"),)
    data = encode_answer(refusal(LaunchError("no room", remedies=remedies)))
    refused = msgspec.msgpack.decode(data, type=Answer).refused
    assert refused is not None
    error = refused.error()
    assert (type(error), error.message, error.remedies) == (LaunchError, "no room", remedies)


@pytest.mark.parametrize(
    ("given", "is_same"),
    [({"nproc_per_node": 2}, True), ({"nproc_per_node": 3}, False), ({"nproc_per_node": 2, "launcher": "mpi"}, False)],
)
def test_a_start_at_another_host_is_the_same_if_what_is_given_is_the_same(given: dict[str, Any], is_same: bool) -> None:
    launcher = given.get("launcher", "slurm")
    new = make_settings(given["nproc_per_node"], None, "c9", launcher=launcher)
    old = make_settings(2, None, "c1", "gloo", launcher="slurm", bind_host="*")
    assert is_same_start(new, old, is_named=False, at="login") == is_same
