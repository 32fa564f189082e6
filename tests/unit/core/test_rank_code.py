"""Rank code: each string is valid Python and calls an entry point of the worker with arguments that it takes."""

from __future__ import annotations

import ast
import inspect

import pytest

from jdist.core import rank_code
from jdist.worker import entry_points

CODE = {
    "run_script": rank_code.run_script("it's.py", ["--lr", "a'b"], in_job=True),
    "full_values": rank_code.full_values(["a", "b['c']"]),
    "broadcast": rank_code.broadcast("model.weight", 3),
    "delete_names": rank_code.delete_names(["a"]),
    "restore": rank_code.restore(["a"], 0, 2),
    "save": rank_code.save("/a b", ["model"], "id", 2),
    "load": rank_code.load("/a'b", [], {4: 0}),
    "read_manifest": rank_code.read_manifest("/a"),
    "cause_fault": rank_code.cause_fault("stop_agent", 5.0),
    "take_events": rank_code.take_events(),
    "call_on_reform": rank_code.call_on_reform(4),
}


def test_every_entry_point_is_written_and_known() -> None:
    assert set(CODE) == set(rank_code.ENTRY_POINTS) == set(entry_points._FUNCTIONS)


@pytest.mark.parametrize("name", CODE)
def test_a_code_string_calls_a_function_that_takes_its_arguments(name: str) -> None:
    value = ast.parse(CODE[name]).body[0].value  # type: ignore[attr-defined]
    assert isinstance(value, ast.Call)
    function = eval(ast.unparse(value.func))
    assert function is getattr(entry_points, name)
    inspect.signature(function).bind(*value.args, **{k.arg: k.value for k in value.keywords if k.arg})


def test_a_scripts_cell_is_recognised() -> None:
    assert rank_code.is_script(CODE["run_script"])
    assert not rank_code.is_script(CODE["broadcast"])


def test_there_is_no_other_entry_point() -> None:
    with pytest.raises(AttributeError, match="no entry point 'system'"):
        _ = entry_points.system
