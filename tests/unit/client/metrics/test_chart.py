"""The chart: right over ranks, small however much was logged, and the same in text, HTML and data."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from jdist.client.metrics.chart import MIME, MetricChart, lines, rounded
from jdist.core.messages.runs import MetricsLogged
from jdist.core.metrics import MetricSeries, RunMetrics
from jdist.worker.metrics import MetricBuffer


def logged(ranks: int, names: list[str], size: int) -> dict[str, dict[int, MetricSeries]]:
    """Rank r logs step + r, and under each further name the same."""
    metrics = RunMetrics(3)
    for rank in range(ranks):
        buffer = MetricBuffer(rank)
        buffer.begin(1)
        for step in range(size):
            buffer.add(step, dict.fromkeys(names, float(step + rank) * 1.2345678))
        metrics.feed(MetricsLogged(1, tuple(buffer.take()[1])))
    return metrics.snapshot()


def of_values(*ranks: list[float]) -> dict[int, MetricSeries]:
    metrics = RunMetrics(3)
    for rank, values in enumerate(ranks):
        buffer = MetricBuffer(rank)
        buffer.begin(1)
        for value in values:
            buffer.add(None, {"x": value})
        metrics.feed(MetricsLogged(1, tuple(buffer.take()[1])))
    return metrics.snapshot()["x"]


def test_few_steps_are_drawn_exactly() -> None:
    found = lines(of_values([1, 2, 3], [3, 4]), 100)
    assert found.steps.tolist() == [0, 1, 2]
    assert found.mean.tolist() == [2, 3, 3]
    assert (found.low.tolist(), found.high.tolist()) == ([1, 2, 3], [3, 4, 3])
    np.testing.assert_equal(found.by_rank[1], [3, 4, np.nan])
    assert found.width == 1


def test_of_many_steps_the_extremes_remain() -> None:
    values = [0.0] * 1000
    values[357], values[820] = 9.0, -4.0
    found = lines(of_values(values, [0.0] * 1000), 50)
    assert len(found.steps) <= 50
    assert (found.high.max(), found.low.min()) == (9, -4)
    assert found.steps[-1] == 999
    assert found.width == 20
    assert found.mean.sum() * 20 * 2 == pytest.approx(5.0)


def test_numbers_that_are_not_finite_are_no_part_of_the_mean() -> None:
    ranks = of_values([1, math.nan, 3], [3, 5, math.inf])
    found = lines(ranks, 100)
    assert found.mean.tolist() == [2, 5, 3]
    assert found.high.tolist() == [3, 5, 3]
    chart = MetricChart(3, {"x": ranks}).data()["charts"][0]
    assert [r["values"] for r in chart["ranks"]] == [[1, "NaN", 3], [3, 5, "inf"]]
    assert chart["ranks"][0]["is_marked"]


def test_numbers_are_short_as_text() -> None:
    numbers = np.array([1 / 3, 123456.789, 1e-20 / 3, -2 / 3e10, 1e300 / 3, 0.0, np.nan, 5e-324])
    short = rounded(numbers)
    assert all(len(repr(n)) <= 12 for n in short.tolist())
    np.testing.assert_allclose(short[:5], numbers[:5], rtol=1e-4)


@pytest.mark.parametrize(("ranks", "names", "size"), [(64, 3, 5000), (64, 30, 200), (4, 1, 9000), (300, 20, 100)])
def test_the_bundle_is_small_and_valid_json(ranks: int, names: int, size: int) -> None:
    bundle = MetricChart(3, logged(ranks, [f"name{i}" for i in range(names)], size)).bundle()
    text = json.dumps(bundle, allow_nan=False)
    assert len(text) < 260_000
    assert len(json.dumps(bundle[MIME])) < 200_000
    for chart in bundle[MIME]["charts"]:
        assert len({len(chart[key]) for key in ("steps", "mean", "low", "high")}) == 1
        assert all(len(r["values"]) == len(chart["steps"]) for r in chart["ranks"])
        assert len(chart["steps"]) >= 30
        assert {0, ranks - 1} <= {r["rank"] for r in chart["ranks"]}, "those that are furthest apart"


def test_text_and_html_say_the_same() -> None:
    ranks = of_values([1.0, 2.0], [3.0, math.nan])
    bundle = MetricChart(3, {"loss <b>": ranks}).bundle()
    assert bundle["text/plain"].splitlines() == [
        "metrics of run 3 · 1 name · 2 ranks · 4 points",
        "name      step  mean  lowest  highest  ranks",
        "loss <b>     1     2       2        2      2",
        "! rank 1: loss <b> is NaN at step 1",
    ]
    html = bundle["text/html"]
    assert "loss &lt;b&gt;" in html
    assert "! rank 1: loss &lt;b&gt; is NaN at step 1" in html
    assert "<script" not in html
    picture = ET.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    assert [part.tag for part in picture] == ["polygon", "polyline"]
    assert bundle[MIME]["marks"] == ["rank 1: loss <b> is NaN at step 1"]


def test_nothing_but_nan_can_be_shown() -> None:
    bundle = MetricChart(3, {"x": of_values([math.nan], [math.inf])}).bundle()
    assert "NaN" in bundle["text/plain"]
    json.dumps(bundle, allow_nan=False)
