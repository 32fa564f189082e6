"""Small tables and heat pictures: their columns, their size, and that text never becomes markup."""

from xml.etree import ElementTree as ET

import pytest

from jdist.notebook.text.tables import table, thumb_svg


def test_table_columns_are_aligned():
    shown = table(["rank", "state", "MB"], [[0, "idle", 12.5], [10, "in all_reduce", None], [2, "日本", 1200]])
    assert shown["text/plain"].split("\n") == [
        "rank  state            MB",
        "   0  idle           12.5",
        "  10  in all_reduce",
        "   2  日本           1200",
    ]
    assert shown["text/html"].count("<tr>") == 4
    ET.fromstring(shown["text/html"])  # every tag is closed


def test_a_table_without_rows_has_its_heads():
    assert table(["a", "b"], [])["text/plain"] == "a  b"


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


def test_text_never_becomes_markup():
    assert "<script" not in table(["<script>"], [["<script>"]])["text/html"]
