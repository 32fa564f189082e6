"""Tables: columns are aligned, empty ones can be left out, and text never becomes markup."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from jdist.core.table import Table


def test_columns_of_numbers_are_set_to_the_right() -> None:
    shown = Table.of(["rank", "state", "MB"], [[0, "idle", 12.5], [10, "in all_reduce", None], [2, "日本", 1200]])
    assert shown.text().split("\n") == [
        "rank  state            MB",
        "   0  idle           12.5",
        "  10  in all_reduce",
        "   2  日本           1200",
    ]
    assert shown.html().count("<tr>") == 4
    ET.fromstring(shown.html())  # every tag is closed


def test_numbers_have_units_and_signs() -> None:
    cells = ["1.2 s", "≈ 448 ms", "12 µs", "3 (+1,024)", "?", "2.0 MB/s", "1.71 GiB", "NaN", "-1e-05", "0 B/s", "7%"]
    for cell in cells:
        assert Table.of(["one"], [[cell], ["123456"]]).text().split("\n")[1] == cell.rjust(max(6, len(cell)))


def test_a_table_without_rows_has_its_heads() -> None:
    assert Table.of(["a", "b"], []).text() == "a  b"


def test_empty_columns_can_be_left_out() -> None:
    shown = Table.of(["a", "b", "c"], [[1, None, ""], [2]], ["a note"]).without_empty("a", "b")
    assert shown.json() == {"heads": ["a", "c"], "rows": [["1", ""], ["2"]]}
    assert shown.text() == "a  c\n1\n2\na note"


def test_notes_and_pictures() -> None:
    shown = Table.of(["a"], [["x\ny"], ["z"]], ["<b>"])
    assert shown.text() == "a\nx y\nz\n<b>"
    found = shown.html(["<svg>\n</svg>"])
    assert "x<br>y" in found
    assert "<svg>\n</svg></td></tr>" in found
    assert "&lt;b&gt;" in found
    assert shown.bundle() == {"text/plain": shown.text(), "text/html": shown.html()}


def test_text_never_becomes_markup() -> None:
    assert "<script" not in Table.of(["<script>"], [["<script>"]], ["<script>"]).html()
