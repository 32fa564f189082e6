"""What %dist doctor shows: nodes side by side, ways as a table, findings in sentences."""

from __future__ import annotations

from jdist.client.doctor.findings import Diagnosis, Finding, diagnose
from jdist.notebook.text.diagnosis_text import diagnosis_bundle, findings_first
from support.nodes import SOUND, gpu_node, node, seen, way


def shown(*reports: object, **rest: object) -> dict[str, str]:
    examination = seen(*reports, **rest)  # type: ignore[arg-type]
    return diagnosis_bundle(diagnose(examination))


def test_nodes_stand_side_by_side() -> None:
    lines = shown(gpu_node(0), node(1))["text/plain"].splitlines()
    assert lines[0].split() == ["node", "0", "node", "1"]
    assert next(line for line in lines if line.startswith("host")).split() == ["host", "a", "b"]
    gpus = next(line for line in lines if line.startswith("GPUs"))
    assert "1 x NVIDIA H200 141 GiB" in gpus
    assert gpus.endswith("none")


def test_of_many_nodes_each_line_says_which_have_what() -> None:
    reports = [node(0, hostname=f"n{n}") for n in range(19)] + [node(0, hostname="n19", python="3.12.1")]
    text = shown(*reports)["text/plain"]
    python = next(line for line in text.splitlines() if line.startswith("Python"))
    assert "0-18: 3.11.7" in python
    assert "19: 3.12.1" in python
    assert "380 of 380 network paths between nodes are open; round trip 0.10 to 0.10 ms" in text


def test_ways_are_a_table_that_names_what_is_blocked() -> None:
    blocked = {(0, 1): way(1, kind="timeout", trouble="x"), (1, 0): way(0, kind="refused", trouble="y")}
    text = shown(node(0), node(1), paths=blocked)["text/plain"]
    assert "blocked (dropped)" in text
    assert "blocked (refused)" in text
    assert "0.10 ms" in shown(node(0), node(1))["text/plain"]


def test_findings_come_with_how_bad_they_are_and_nothing_found_is_said() -> None:
    assert "✓ nothing found: 2 nodes examined" in shown(node(0), node(1))["text/plain"]
    assert "✗ breaks: torch differs" in shown(node(0), node(1, torch="2.0"))["text/plain"]


def test_what_nodes_say_is_shown_as_text() -> None:
    hostile = "<script>alert(1)</script>"
    diagnosis = Diagnosis(seen(node(0, hostname=hostile), SOUND), (Finding("breaks", hostile),))
    page = diagnosis_bundle(diagnosis)["text/html"]
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_start_that_failed_shows_why_and_no_tables() -> None:
    examination = seen(trouble="ssh: no route to host")
    text = diagnosis_bundle(diagnose(examination))["text/plain"]
    assert text == "✗ breaks: the world could not be formed: ssh: no route to host"


def test_findings_can_come_first() -> None:
    examination = seen(node(0), node(1, python="3.12.1"))
    text = findings_first(diagnose(examination))
    findings, table, *_ = text.split("\n\n")
    assert findings.startswith("✗ breaks: Python differs")
    assert table.split()[:4] == ["node", "0", "node", "1"]
    assert findings_first(diagnose(seen(node(0)))).startswith("✓ nothing found: 1 node examined\n\n")
