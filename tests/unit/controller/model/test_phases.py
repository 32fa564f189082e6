"""Phases: only the transitions of the tables are made, and each is remembered with its reason."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest

from jdist.controller.model.phases import CLUSTER, RANK, RUN, SAVES, HasPhase, InvalidTransition, Lifecycle, transition
from jdist.controller.model.runs import Run
from jdist.core.messages.runs import CellSpec
from support.driver import Driver

TABLES = {"cluster": CLUSTER, "rank": RANK, "run": RUN, "saves": SAVES}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_what_the_table_does_not_allow_is_refused(table: dict[str, tuple[str, ...]]) -> None:
    for one, other in itertools.permutations(table, 2):
        thing: HasPhase[str] = HasPhase()
        thing.lifecycle = Lifecycle("thing", one, table)
        if other in table[one]:
            transition(thing, other, "why")
            assert thing.phase == other
        else:
            with pytest.raises(InvalidTransition, match=f"thing cannot go from {one} to {other}"):
                transition(thing, other, "why")
            assert thing.phase == one


def test_the_error_quotes_the_last_transitions_and_their_reasons() -> None:
    run = Run(3, "c", CellSpec(""), (0,))
    transition(run, "running", "its ranks are free")
    transition(run, "running", "again, which changes nothing")
    transition(run, "ended", "done")
    told = "run 3 cannot go from ended to running (no); run 3: running (its ranks are free), ended (done)"
    with pytest.raises(InvalidTransition) as raised:
        transition(run, "running", "no")
    assert str(raised.value) == told


def test_the_story_is_bounded() -> None:
    life = Lifecycle("rank 0", "gone", RANK)
    thing: HasPhase[str] = HasPhase()
    thing.lifecycle = life  # type: ignore[assignment]
    for n in range(100):
        transition(thing, "starting", f"again {n}")
        transition(thing, "gone", f"killed {n}")
    assert "killed 99" in life.story
    assert "killed 50" not in life.story


def test_transitions_are_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "jdist.controller")
    d = Driver().ready()
    d.run((0, 1))
    lines = [r.getMessage() for r in caplog.records if r.name == "jdist.controller"]
    assert "the cluster: gathering -> forming (generation 1)" in lines
    assert "rank 0: up -> held (generation 1)" in lines
    assert "run 1: queued -> running (its ranks are free)" in lines
    assert d.state.model.story.startswith("the cluster: forming (generation 1), ready (")


@pytest.mark.parametrize(("name", "table"), TABLES.items())
def test_the_diagrams_show_the_tables(name: str, table: dict[str, tuple[str, ...]]) -> None:
    page = Path("docs/design/states.md").read_text()
    heading = {"cluster": "The cluster", "saves": "Automatic saves"}.get(name, f"A {name}")
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| *")]
    shown: dict[str, set[str]] = {phase: set() for phase in table}
    for one, other, *_ in rows:
        shown[one.strip("*")].add(other.strip("*"))
    assert shown == {phase: set(following) for phase, following in table.items()}
