"""Metrics as users have them in Python: a table, a CSV file, and a message where there is nothing."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from jdist.client.metrics.logged import KeptMetrics, Metrics
from jdist.core.errors import UsageError
from jdist.core.messages.runs import MetricsLogged
from jdist.core.metrics import RunMetrics
from jdist.worker.metrics import MetricBuffer


def logged(run: int = 3) -> RunMetrics:
    metrics = RunMetrics(run)
    for rank in (1, 0):
        buffer = MetricBuffer(rank)
        buffer.begin(run)
        buffer.add(5, {"loss": 0.5 + rank, "lr": 0.1})
        buffer.add(6, {"loss": math.nan})
        metrics.feed(MetricsLogged(*buffer.take()))
    return metrics


def test_the_table() -> None:
    metrics = Metrics(logged())
    assert (metrics.run, metrics.names, metrics.ranks, len(metrics)) == (3, ["loss", "lr"], [0, 1], 6)
    assert next(row[:4] for row in metrics) == (5, 0, "loss", 0.5)
    columns = metrics.columns
    assert tuple(columns) == Metrics.COLUMNS
    assert columns["step"] == [5, 6, 5, 6, 5, 5]
    assert columns["rank"] == [0, 0, 1, 1, 0, 1]
    assert columns["name"] == ["loss"] * 4 + ["lr"] * 2
    assert metrics.marks == ["ranks 0-1: loss is NaN at step 6"]
    assert repr(metrics).startswith("metrics of run 3 · 2 names · 2 ranks · 6 points")


def test_a_data_frame() -> None:
    pd = pytest.importorskip("pandas")
    frame = Metrics(logged()).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame.pivot_table(index="step", columns="rank", values="value", aggfunc="first").shape == (1, 2)
    assert Metrics(RunMetrics(1)).to_pandas().columns.tolist() == list(Metrics.COLUMNS)


def test_a_csv_file(tmp_path: Path) -> None:
    metrics = Metrics(logged())
    with metrics.to_csv(tmp_path / "m.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(r["step"]), int(r["rank"]), r["name"]) for r in rows] == [row[:3] for row in metrics]
    assert [float(r["value"]) for r in rows] == pytest.approx([row[3] for row in metrics], nan_ok=True)
    with pytest.raises(UsageError, match=r"cannot be written to .*/none/m.csv: No such file"):
        metrics.to_csv(tmp_path / "none" / "m.csv")


def test_the_newest_runs_are_kept() -> None:
    kept = KeptMetrics()
    with pytest.raises(UsageError, match=r"nothing was logged yet in a cell of this client; call jdist.log\("):
        kept.find(0)
    for run in range(1, 31):
        kept.keep(RunMetrics(run))
    assert kept.find(0).run == 30
    assert kept.find(11).run == 11
    with pytest.raises(UsageError, match=r"nothing was logged in run 10 .* there are metrics of run 11, 12,"):
        kept.find(10)
