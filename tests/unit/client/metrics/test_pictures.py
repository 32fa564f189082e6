"""Small pictures: they say what they show, whatever the size of what is drawn."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from jdist.client.metrics.pictures import histogram_line, histogram_svg, thumb_svg


def test_a_heat_picture_is_small_and_says_what_it_shows():
    nan = float("nan")
    svg = thumb_svg([[0.0, 1.0, -2.0], [nan, 0.5, 2.0]])
    root = ET.fromstring(svg)
    assert root.find("{*}title").text == "2 x 3, -2 to 2, 1 NaN or infinite"
    fills = [path.get("fill") for path in root.iter("{http://www.w3.org/2000/svg}path")]
    assert len(set(fills)) == 6  # ground, -2, 0.5, 1, 2, and the cross, which has none
    assert len(thumb_svg([[float((i * j) % 17) for j in range(500)] for i in range(500)])) < 30_000


def test_a_picture_of_zeros_is_one_ground():
    assert thumb_svg([[0.0] * 4] * 4).count("<path") == 1


@pytest.mark.parametrize("matrix", [[], [[]], [[1.0], [1.0, 2.0]]])
def test_no_picture_of_what_is_no_matrix(matrix):
    with pytest.raises(ValueError, match="a matrix"):
        thumb_svg(matrix)


def test_a_line_has_a_character_for_each_bin() -> None:
    assert histogram_line([0, 1, 400, 800]) == " ▁▄█"
    assert histogram_line([0, 0]) == "  "


def test_the_picture_has_a_bar_for_each_bin_that_is_not_empty_and_says_what_it_shows() -> None:
    svg = histogram_svg({"low": -1.0, "high": 1.0, "counts": [0, 1, 3, 1200]})
    assert "<title>1,204 elements from -1 to 1; the most, 1,200, from 0.5 to 1</title>" in svg
    assert len(re.findall("M[0-9.]+ 40v", svg)) == 3
    assert "v-1h" in svg, "a single element can be seen"
    assert "currentColor" in svg, "the text's colour, light or dark"
    assert "<title>0 elements from -1 to 1</title>" in histogram_svg({"low": -1.0, "high": 1.0, "counts": [0, 0]})
