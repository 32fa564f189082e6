"""The structure of a run's output: that it fits its schema, says all that the HTML says, and repeats nothing large."""

from __future__ import annotations

import base64
import json
import os
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.core.errors import Remedy
from jdist.core.messages.observation import Verdict
from jdist.core.messages.runs import Display, Text
from jdist.core.outcome import ErrorInfo, Outcome, OutcomeKind, OutputLine
from jdist.core.ranks import RankSet
from jdist.core.topology import Topology
from jdist.notebook.output.render import render
from jdist.notebook.output.run_json import MIME, RunJson, TextSegment
from jdist.notebook.output.run_view import RunView
from jdist.notebook.output.screen import weight
from jdist.notebook.output.transcript import Transcript
from jdist.notebook.text.markup import MARK

RANKS = (0, 1, 2, 3)
SCHEMA = msgspec.json.schema(RunJson)
PICTURE = base64.b64encode(os.urandom(30_000)).decode()


def ok(duration: float = 0.03) -> Outcome:
    return Outcome(kind="value", duration=duration)


def failed(evalue: str = "bad", kind: OutcomeKind = "error", is_echo: bool = False) -> Outcome:
    trace = ("\x1b[31mValueError\x1b[39m", "Cell line 5", f"ValueError: {evalue}")
    error = ErrorInfo("ValueError", evalue, trace, 5, "  dist.all_reduce(t)", is_echo)
    return Outcome(kind=kind, error=error, duration=1.0)


def bundle(transcript: Transcript | None = None, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"run": 12, "ranks": RANKS, "state": "done", "elapsed": 0.031, "cluster": "c"}
    facts["outcomes"] = dict.fromkeys(RANKS, ok())
    facts["topology"] = Topology((2, 2), ("alpha", "beta"))
    facts["blocks"] = transcript.blocks() if transcript is not None else ()
    return render(RunView(**(facts | changes)))


def structure(transcript: Transcript | None = None, **changes: Any) -> dict[str, Any]:
    found = bundle(transcript, **changes)[MIME]
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)
    return dict(found)


def piece_of(shown: dict[str, Any], number: int) -> str:
    """A marked piece of the HTML, as the extension of JupyterLab finds it."""
    return str(shown["text/html"].split(MARK)[2 * number + 1])


def test_equal_lines_stand_once_and_neighbours_are_joined() -> None:
    transcript = Transcript(RANKS)
    for rank in RANKS:
        transcript.feed(Text((rank,), "stdout", "one sentence\nand \x1b[31manother\x1b[0m\n"))
    transcript.feed(Text((1,), "stderr", "careful\n"))
    assert structure(transcript)["segments"] == [
        {"kind": "text", "ranks": "0-3", "text": "one sentence\nand \x1b[31manother\x1b[0m"},
        {"kind": "text", "ranks": "1", "text": "careful", "stderr": True},
    ]


def test_lines_that_differ_in_numbers_keep_each_ranks_own() -> None:
    transcript = Transcript(RANKS)
    for step in range(2):
        for rank in RANKS:
            transcript.feed(Text((rank,), "stdout", f"step {step} loss 0.{rank // 2}\n"))
    texts = [{"ranks": f"{r}-{r + 1}", "text": f"step 0 loss 0.{r // 2}\nstep 1 loss 0.{r // 2}"} for r in (0, 2)]
    text = "\n".join(f"step {step} loss 0.0 | 0.0 | 0.1 | 0.1" for step in range(2))
    assert structure(transcript)["segments"] == [{"kind": "text", "ranks": "0-3", "text": text, "texts": texts}]


def test_lines_that_differ_in_two_numbers_or_hold_a_value_stand_by_rank_in_every_form() -> None:
    transcript = Transcript(RANKS)
    for rank in reversed(RANKS):
        text = f"step 0 loss {rank} acc {rank}\n[1] tensor([{rank}.,\n        {rank}.])\n"
        transcript.feed(Text((rank,), "stdout", text + "● run 1 cannot finish\n"))
    expected = [(str(rank), f"step 0 loss {rank} acc {rank}") for rank in RANKS]
    expected += [(str(rank), f"[1] tensor([{rank}.,\n        {rank}.])") for rank in RANKS]
    expected += [("0-3", "● run 1 cannot finish")]
    shown = bundle(transcript)
    assert [(s["ranks"], s["text"]) for s in shown[MIME]["segments"]] == expected
    lines = [(ranks, line) for ranks, text in expected for line in text.split("\n")]
    body = [f"[{ranks}] {line}" for ranks, line in lines]
    assert shown["text/plain"].splitlines()[: len(body)] == body
    assert re.findall(r"<span[^>]*>\[([-0-9]+)\]</span> ([^<\n]*)", shown["text/html"]) == lines


def test_a_result_and_a_display_stand_with_their_ranks() -> None:
    transcript = Transcript(RANKS)
    transcript.feed(Display(RANKS, {"text/plain": "tensor([6.])"}, is_result=True))
    transcript.feed(Display((0,), {"text/plain": "x²", "text/latex": "$x^2$"}))
    transcript.feed(Display((1,), {"text/plain": "spec", "application/vnd.vega.v5+json": {"mark": "bar"}}))
    assert structure(transcript)["segments"] == [
        {"kind": "shown", "ranks": "0-3", "data": {"text/plain": "tensor([6.])"}, "is_result": True},
        {"kind": "shown", "ranks": "0", "data": {"text/latex": "$x^2$", "text/plain": "x²"}},
        {
            "kind": "shown",
            "ranks": "1",
            "data": {"application/vnd.vega.v5+json": {"mark": "bar"}, "text/plain": "spec"},
        },
    ]


def test_figures_in_json_have_a_limit_of_their_own_and_the_newest_are_kept() -> None:
    mime = "application/vnd.plotly.v1+json"
    figures = [{"of": number, "data": "x" * size} for number, size in enumerate((600_000, 600_000, 5_000_000, 200_000))]
    transcript = Transcript(RANKS)
    for figure in figures:
        transcript.feed(Display((0,), {mime: figure}))
    transcript.feed(Text((0,), "stdout", "text\n" * 1000))
    oldest, middle, largest, newest, lines = structure(transcript)["segments"]
    assert (middle["data"][mime], newest["data"][mime]) == (figures[1], figures[3])
    for left_out, size in ((oldest, "600,0"), (largest, "5,000,0")):
        assert list(left_out["data"]) == ["text/plain"]
        assert f"{mime} of {size}" in left_out["data"]["text/plain"].replace("[", "")
    assert lines["text"].count("text") == 1000


@pytest.mark.parametrize("before", ["plain", MARK])
def test_pictures_tables_and_tracebacks_are_pieces_of_the_html(before: str) -> None:
    transcript = Transcript(RANKS)
    transcript.feed(Text((0,), "stdout", before + "\n"))
    transcript.feed(Display((1,), {"text/plain": "<Figure>", "image/png": PICTURE}))
    transcript.feed(Display((0, 2), {"text/plain": "frame", "text/html": "<table><tr><td>🙂</td></tr></table>"}))
    shown = bundle(transcript, outcomes={**dict.fromkeys(RANKS, ok()), 3: failed()})
    found = shown[MIME]
    assert PICTURE not in json.dumps(found)
    picture, table = found["segments"][1:]
    assert (picture["ranks"], table["ranks"]) == ("1", "0,2")
    assert piece_of(shown, picture["piece"]).startswith("<img ")
    assert PICTURE in piece_of(shown, picture["piece"])
    assert piece_of(shown, table["piece"]) == "<table><tr><td>🙂</td></tr></table>"
    traceback = piece_of(shown, found["failures"][0]["traceback"])
    assert traceback.startswith("<pre")
    assert traceback.endswith("ValueError: bad</pre>")


@pytest.mark.parametrize("own", [MARK, f"<b>{MARK}</b>{MARK}", "<!--<!--jdist-->jdist-->", "<!-- open", "</div></div>"])
def test_no_display_changes_what_is_shown_of_others(own: str) -> None:
    transcript = Transcript(RANKS)
    transcript.feed(Display((0,), {"text/plain": "own", "text/html": own}))
    transcript.feed(Display((1,), {"text/plain": "frame", "text/html": "<table></table>"}))
    shown = bundle(transcript, outcomes={**dict.fromkeys(RANKS, ok()), 3: failed()})
    first, table = shown[MIME]["segments"]
    assert piece_of(shown, first["piece"]) == own.replace(MARK, "<!-- -->")
    assert piece_of(shown, table["piece"]) == "<table></table>"
    assert piece_of(shown, shown[MIME]["failures"][0]["traceback"]).endswith("ValueError: bad</pre>")


def test_a_short_traceback_of_an_error_stands_open() -> None:
    def stand_open(lines: int, kind: OutcomeKind = "error") -> list[bool]:
        error = ErrorInfo("ValueError", "bad", tuple("x" * lines), 5)
        found = structure(outcomes={0: Outcome(kind=kind, error=error)})["failures"]
        return [failure.get("stands_open", False) for failure in found]

    assert stand_open(30) == [True]
    assert stand_open(31) == [False]
    assert stand_open(5, "interrupted") == [False]


def test_ranks_alike_stand_together_and_times_are_rounded() -> None:
    outcomes = {0: ok(0.0312), 1: ok(0.0308), 2: failed()}
    assert structure(outcomes=outcomes, state="running", elapsed=12.34)["ranks"] == [
        {"ranks": "0-1", "state": "value", "seconds": 0.031},
        {"ranks": "2", "state": "error", "seconds": 1.0},
        {"ranks": "3", "state": "running"},
    ]
    assert structure(outcomes={}, state="waiting")["ranks"] == [{"ranks": "0-3", "state": "waiting"}]


def test_causes_come_before_their_echoes() -> None:
    found = structure(outcomes={0: failed("broken pipe", is_echo=True), 1: ok(), 2: failed("bad"), 3: ok()})
    heads = [(f["ranks"], f["headline"], f.get("is_echo", False)) for f in found["failures"]]
    assert heads == [
        ("2", "rank 2 (node 1, beta) failed: ValueError: bad", False),
        ("0", "rank 0 (node 0, alpha) failed: ValueError: broken pipe", True),
    ]
    assert found["failures"][0]["place"] == "line 5: dist.all_reduce(t)"


def test_a_verdict_suggests_actions_until_the_run_is_over() -> None:
    remedy = Remedy("interrupt", "stop the run")
    verdict = Verdict(12, "absent", (1,), (0,), "rank 1 has not entered all_reduce #1", ("rank 0 waits",), (remedy,))
    found = structure(verdict=verdict, state="running", outcomes={})["verdict"]
    assert found == {
        "headline": "run 12 cannot finish: rank 1 has not entered all_reduce #1",
        "is_certain": True,
        "details": ["rank 0 waits"],
        "remedies": [{"action": "interrupt", "effect": "stop the run"}],
    }
    found = structure(verdict=verdict)["verdict"]
    assert found["headline"].startswith("run 12 did not finish")
    assert "remedies" not in found


def test_a_verdict_on_what_has_passed_says_that_the_run_finished() -> None:
    verdict = Verdict(12, "mismatch", (1,), (), "all_reduce #1 differed", ("rank 1 calls it",), has_passed=True)
    found = structure(verdict=verdict)["verdict"]
    assert found["headline"] == "run 12 finished, but all_reduce #1 differed"
    assert not found["is_certain"]
    assert "all_reduce #1 differed" in verdict.final_text


def test_a_thousand_ranks_take_little_room() -> None:
    many = tuple(range(1024))
    outcomes = {r: ok(0.5 + r % 7 / 100) for r in many}
    found = structure(ranks=many, outcomes=outcomes, topology=None)
    assert len(found["ranks"]) == 7
    outcomes = {r: failed(f"bad {chr(65 + r % 26)}{chr(65 + r // 26)}") for r in many}
    found = structure(ranks=many, outcomes=outcomes, topology=None)
    assert len(found["failures"]) == 12
    assert found["more_failures"] == 1012


def test_the_middle_of_long_output_is_a_gap() -> None:
    transcript = Transcript(RANKS)
    for i in range(20_000):
        transcript.feed(Text((0, 1), "stdout", f"line {i} of two\n"))
    found = structure(transcript)["segments"]
    assert [s["kind"] for s in found] == ["text", "gap", "text"]
    shown = sum(s["text"].count("\n") + 1 for s in found if s["kind"] == "text")
    assert found[1]["text"].startswith(f"… {20_000 - shown:,} lines of each of ranks 0-1 left out")
    assert shown > 4000


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(RANKS), st.text(max_size=30), st.booleans()), max_size=30),
    st.sampled_from([None, 0]),
)
def test_no_rank_loses_a_line_whatever_it_writes(steps: list[tuple[int, str, bool]], lead: int | None) -> None:
    transcript = Transcript(RANKS)
    for rank, text, is_stderr in steps:
        transcript.feed(Text((rank,), "stderr" if is_stderr else "stdout", text + "\n"))
    transcript.close()
    found = msgspec.convert(bundle(transcript, lead=lead, state="running")[MIME], RunJson)
    said: dict[int, list[str]] = {rank: [] for rank in RANKS}
    for segment in found.segments:
        assert isinstance(segment, TextSegment)
        for each in segment.texts or [segment]:
            for rank in RankSet.parse(each.ranks, Topology((4,), ("host",))):
                said[rank] += each.text.split("\n")
    for rank in RANKS:
        assert said[rank] == [item.text for item in transcript.items(rank) if isinstance(item, OutputLine)]


def test_a_notebook_does_not_double_with_text_and_does_not_grow_with_pictures() -> None:
    transcript = Transcript(RANKS)
    for i in range(300):
        for rank, (name, part) in enumerate(("aw", "bx", "cy", "dz")):
            transcript.feed(Text((rank,), "stdout", f"epoch {i}: rank-{name} sees shard {part} of the data\n"))
    shown = bundle(transcript)
    assert len(written(shown)) < 1.8 * len(written({m: v for m, v in shown.items() if m != MIME}))
    transcript.feed(Display((1,), {"text/plain": "<Figure>", "image/png": PICTURE * 10}))
    assert len(json.dumps(bundle(transcript)[MIME])) < len(json.dumps(shown[MIME])) + 200
    letters = len(shown["text/plain"]) + len(shown["text/html"])
    assert weight(shown) == letters + len(json.dumps(shown[MIME], ensure_ascii=False))


def written(shown: dict[str, Any]) -> str:
    """As a notebook file holds it."""
    lines = {m: v.splitlines(keepends=True) if isinstance(v, str) else v for m, v in shown.items()}
    return json.dumps(lines, indent=1, ensure_ascii=False)
