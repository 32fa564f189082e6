"""The options of a start are the same ones wherever they are listed."""

from __future__ import annotations

import inspect

import pytest

from jdist.client.cluster import AsyncCluster
from jdist.client.lifecycle.start import make_settings
from jdist.core.settings import LIMIT_OPTIONS, DeclaredOption, Settings, declared_options
from jdist.notebook.options import start_options, start_parser

OF_CALLERS = {
    "keep",
    "kind",
    "at",
    "at_python",
    "at_install",
    "on_progress",
    "limits",
}  # What a program says of the start, and not of the cluster.
OF_STARTS = {"timeout"}  # Not of the cluster.


def test_the_signature_has_each_option_with_its_default() -> None:
    parameters = inspect.signature(AsyncCluster.start).parameters
    options = {o.name: o.default or None for o in declared_options() if o.name not in LIMIT_OPTIONS}
    assert {name: p.default or None for name, p in parameters.items() if name not in OF_CALLERS} == options


@pytest.mark.parametrize("option", declared_options(), ids=lambda o: o.name)
def test_an_option_becomes_a_setting(option: DeclaredOption) -> None:
    assert option.name in {*Settings.__struct_fields__, *OF_STARTS}
    assert bool(option.about.help) == (option.name != "launcher_args")


def test_a_start_without_options_has_the_settings_of_one_without_arguments() -> None:
    parsed = start_parser("x").parse([])
    parsed.rest = ()
    given = start_options(parsed)
    assert given.pop("timeout") is None
    assert make_settings(**{**given, "name": "c"}) == make_settings(None, None, "c")
