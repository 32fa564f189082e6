"""Spans of runs: which run's cell is on, also while cells run in the middle of another."""

from __future__ import annotations

from jdist.worker.observe.observer import RunSpans


def test_which_run_is_on() -> None:
    spans = RunSpans()
    assert (spans.current, spans.is_due(1)) == (0, True)
    spans.begin(1)
    spans.begin(2)
    assert (spans.current, spans.is_due(1), spans.is_due(2), spans.is_due(3)) == (2, True, True, True)
    spans.end(2)
    assert (spans.current, spans.is_due(1), spans.is_due(2)) == (1, True, False)
    spans.end(1)
    assert (spans.current, spans.is_due(1), spans.is_due(3)) == (0, False, True)


def test_a_run_is_remembered_however_many_cells_run_in_its_frames() -> None:
    spans = RunSpans()
    spans.begin(1)
    for run in range(2, 1000):
        spans.begin(run)
        spans.end(run)
    assert spans.current == 1
    assert spans.find(1) is not None
    assert spans.find(2) is None, "only the last ones that have ended are remembered"
    assert spans.find(999) is not None
