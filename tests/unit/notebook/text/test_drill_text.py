"""A drill as a table, with a line for each fault that did not end as promised."""

from __future__ import annotations

import json

from jdist.client.drill import Drill, Trial
from jdist.notebook.text.diagnosis_text import drill_bundle, drill_json

HELD = Trial("a rank is killed", "held", verdict_seconds=0.05, free_seconds=0.012, sum_seconds=1.5, kept=3, expected=3)


def test_times_and_names_are_a_table() -> None:
    shown = drill_bundle([Drill("gloo", "ssh", 4, ("a", "b"), 2.0, (HELD,))])
    lines = shown["text/plain"].splitlines()
    assert lines[0] == "backend gloo: 4 ranks on 2 nodes (a, b), by launcher ssh; started in 2.0 s"
    assert " ".join(lines[3].split()) == "✓ a rank is killed 0.05 s 0.01 s 1.50 s 3 of 3"
    assert lines[-1] == "every one of 1 fault ended as jdist promises"
    assert "<table>" in shown["text/html"]


def test_what_failed_and_what_was_not_tried_is_said() -> None:
    failed = Trial("a node's agent is killed", "failed", "rank 1 has lost <names>", verdict_seconds=0.1)
    skipped = Trial("two ranks receive from each other", "not tried", "no gloo")
    noted = Trial("a rank's connections break", "held", note="the collectives went on")
    shown = drill_bundle([Drill("gloo", "local", 4, ("a",), 2.0, (HELD, failed, skipped, noted))])
    text = shown["text/plain"]
    assert "✗ a node's agent is killed: rank 1 has lost <names>" in text
    assert "· two ranks receive from each other: no gloo" in text
    assert "· a rank's connections break: the collectives went on" in text
    assert text.endswith("1 of 3 faults did not end as jdist promises")
    assert "&lt;names&gt;" in shown["text/html"]


def test_backends_stand_one_below_the_other_and_one_without_a_cluster_says_why() -> None:
    skipped = Trial("a rank is killed", "not tried", "the cluster could not be started: no GPU")
    drills = [
        Drill("gloo", "local", 2, ("a",), 1.0, (HELD,)),
        Drill("nccl", "local", trials=(skipped,), trouble="no GPU"),
    ]
    text = drill_bundle(drills)["text/plain"]
    assert text.index("backend gloo") < text.index("✗ backend nccl: no GPU")


def test_the_report_says_what_held_on_what() -> None:
    trial = Trial("a rank is killed", "held", said="rank 1 is lost", verdict_seconds=0.25, kept=3, expected=3)
    found = json.loads(drill_json([Drill("gloo", "local", 4, ("a",), trials=(trial,))]))
    assert found["held"] is True
    assert found["versions"].keys() == {"jdist", "python", "system"}
    assert found["drills"][0]["trials"][0] == {
        "fault": "a rank is killed", "result": "held", "reason": "", "note": "", "said": "rank 1 is lost",
        "verdict_seconds": 0.25, "free_seconds": None, "sum_seconds": None, "kept": 3, "expected": 3,
    }  # fmt: skip
    assert json.loads(drill_json([]))["held"] is False, "as in a drill that was ended"
