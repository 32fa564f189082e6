"""What Ray is asked for."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from jdist.core.errors import UsageError
from jdist.core.settings import Settings
from jdist.launch.base import find_launcher
from support.lacking import lacking


@pytest.fixture(autouse=True)
def _ray() -> None:
    if find_spec("ray") is None:
        lacking("the launcher needs the package ray")


@pytest.mark.parametrize(
    ("found", "nnodes", "wanted", "asked"),
    [
        ([8, 8, 8], 2, 4, 4),
        ([8, 2, 8], 2, 16, 8),
        ([8, 2, 8], 3, 16, 2),
        ([8], 2, 16, 16),  # another may be on its way
        ([], 1, 2, 2),
        ([0, 4, 4], 3, 4, 0),
    ],
)
def test_nodes_are_asked_for_what_as_many_have(found: list[float], nnodes: int, wanted: float, asked: float) -> None:
    from jdist.launch.ray import fitting

    assert fitting(found, nnodes, wanted) == asked


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--num-cpu", "2"), "did you mean --num-cpus"),
        (("--num-gpus", "many"), "a number is needed"),
        (("10.0.0.1:6379",), "does not understand 10.0.0.1:6379"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_started(words: tuple[str, ...], says: str) -> None:
    from jdist.launch.ray import RayLauncher

    with pytest.raises(UsageError, match=says):
        RayLauncher.complete(Settings(name="c1", launcher="ray", launcher_args=words))


def test_the_launcher_does_not_import_ray_and_without_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find_launcher("ray")
    assert "ray" not in sys.modules
    monkeypatch.delitem(sys.modules, "jdist.launch.ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'jdist\[ray\]'"):
        find_launcher("ray")
