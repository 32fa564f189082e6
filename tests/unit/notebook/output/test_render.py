"""What a run looks like: words, order, sizes, and that nobody's text becomes markup."""

import base64
import html
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jdist.core.messages.observation import Verdict
from jdist.core.messages.runs import Display, Tail, Text
from jdist.core.outcome import ErrorInfo, Outcome
from jdist.core.table import Table
from jdist.core.topology import Topology
from jdist.notebook.output.content import IMAGES_LIMIT
from jdist.notebook.output.render import render
from jdist.notebook.output.run_json import MIME
from jdist.notebook.output.run_view import RunView
from jdist.notebook.output.transcript import Transcript
from jdist.notebook.text import markup as text_markup
from jdist.notebook.text.markup import left_out

RANKS = (0, 1, 2, 3)
TOPOLOGY = Topology((2, 2), ("alpha", "beta"))
EVIL = "<script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;"


def ok(duration: float = 0.03) -> Outcome:
    return Outcome(kind="value", duration=duration)


def failed(ename="ValueError", evalue="bad", *, echo=False, duration=1.0, kind="error", line=5) -> Outcome:
    trace = (f"\x1b[31m{ename}\x1b[39m  Traceback (most recent call last)", f"Cell line {line}", f"{ename}: {evalue}")
    error = ErrorInfo(ename, evalue, trace, line, "  dist.all_reduce(t)", echo)
    return Outcome(kind=kind, error=error, duration=duration)


def view(transcript: Transcript | None = None, **changes) -> RunView:
    facts = {"run": 12, "ranks": RANKS, "state": "done", "elapsed": 0.031, "topology": TOPOLOGY}
    facts["outcomes"] = dict.fromkeys(RANKS, ok())
    facts["blocks"] = transcript.blocks() if transcript is not None else ()
    return RunView(**(facts | changes))


def written(*steps) -> Transcript:
    transcript = Transcript(RANKS)
    for ranks, text in steps:
        transcript.feed(Text(ranks, "stdout", text))
    return transcript


def texts(shown: RunView) -> dict[str, str]:
    return {mime: content for mime, content in render(shown).items() if mime != MIME}


def plain(shown: RunView) -> str:
    return render(shown)["text/plain"]


def markup(shown: RunView) -> str:
    return render(shown)["text/html"]


class Tags(HTMLParser):
    """The tags of a piece of HTML, whether they are balanced, and its text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


OUR_TAGS = {"div", "pre", "span", "em", "strong", "code", "details", "summary", "br"}


# ---- lines and results


def test_lines_stand_with_their_ranks_and_the_run_ends_with_one_line():
    transcript = written((RANKS, "loading\n"), ((0,), "loss 0.1\n"), ((1,), "loss 0.2\n"), ((2,), "alone\n"))
    lines = ["[0-3] loading", "[0-1] loss 0.1 | 0.2", "[2] alone", "run 12 · 4 ranks · 0.03 s"]
    assert plain(view(transcript)).split("\n") == lines
    assert Tags(markup(view(transcript))).text.replace("\n", "") == "".join(lines)


def test_results_are_collapsed_and_further_lines_are_set_under_the_first():
    transcript = Transcript(RANKS)
    transcript.feed(Display((0, 1, 2), {"text/plain": "tensor([[6.],\n        [6.]])"}, is_result=True))
    transcript.feed(Display((3,), {"text/plain": "tensor(7.)"}, is_result=True))
    assert "[0-2] tensor([[6.],\n              [6.]])\n[3] tensor(7.)\n" in plain(view(transcript))
    assert "tensor([[6.],\n              [6.]])" in Tags(markup(view(transcript))).text


def test_stderr_is_told_apart_without_colour():
    transcript = Transcript(RANKS)
    transcript.feed(Text((1,), "stderr", "careful\n"))
    bare = re.sub(r' style="[^"]*"', "", markup(view(transcript)))
    assert '<em title="stderr">[1]</em>' in bare


def test_colours_become_spans_in_html_and_vanish_in_plain_text():
    transcript = written((RANKS, "\x1b[1;31mred\x1b[0m \x1b[38;5;208morange\x1b[0m\n"))
    assert "[0-3] red orange\n" in plain(view(transcript))
    shown = markup(view(transcript))
    assert re.search(r'<span style="color:#\w{6};font-weight:bold">red</span> <span style="color:#ff8700">o', shown)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"text/html": "<b id='own'>6</b>", "text/plain": "6"}, "<b id='own'>6</b>"),
        ({"image/png": "QUJD", "text/plain": "<Figure>"}, 'src="data:image/png;base64,QUJD" alt="&lt;Figure&gt;"'),
        ({"image/jpeg": "QUJD\n"}, 'src="data:image/jpeg;base64,QUJD"'),
        ({"image/svg+xml": "<svg/>"}, f'src="data:image/svg+xml;base64,{base64.b64encode(b"<svg/>").decode()}"'),
        ({"image/png": '"><script>'}, 'base64,&quot;&gt;&lt;script&gt;"'),
        ({"text/latex": "$a<b$"}, "<div>$a&lt;b$</div>"),
        ({"text/markdown": "# <T>"}, "# &lt;T&gt;</pre>"),
        ({"text/plain": EVIL}, html.escape(EVIL)),
        ({"application/x-own": "1"}, "&lt;application/x-own&gt;"),
    ],
)
def test_a_display_shows_the_richest_it_has(data, expected):
    transcript = Transcript(RANKS)
    transcript.feed(Display((1, 2), data))
    shown = markup(view(transcript))
    assert expected in shown
    assert "[1-2]" in shown


def test_a_picture_keeps_its_size_only_when_that_is_a_number():
    transcript = Transcript(RANKS)
    transcript.feed(Display((0,), {"image/png": "QUJD"}, {"image/png": {"width": 300, "height": '1" onload="x'}}))
    assert ' width="300"' in markup(view(transcript))
    assert "onload" not in markup(view(transcript))


def test_long_output_is_folded_but_for_its_end():
    transcript = written((RANKS, "".join(f"line {i}\n" for i in range(300))))
    shown = markup(view(transcript))
    assert "<summary" in shown
    early, late = shown.split("</details>")
    assert "276 earlier lines" in early
    assert "line 275" in early
    assert "line 276" in late
    assert "line 299" in late
    assert "<summary" not in markup(view(written((RANKS, "a\n" * 50))))


def test_lead_shows_one_rank_and_keeps_the_others_one_click_away():
    transcript = written((RANKS, "same\n"), ((1,), "of one\n"), ((2, 3), "of two\n"))
    shown = markup(view(transcript, lead=1))
    first, *rest = shown.split("<details")
    assert "of one" in first
    assert "[1]" in first
    assert "of two" not in first
    assert [re.search(r"<summary[^>]*>(.*?)<", part)[1] for part in rest] == ["rank 0 · 1 line", "ranks 2-3 · 2 lines"]
    assert "[2-3]</span> of two" in rest[1]
    assert plain(view(transcript, lead=1)).split("\n")[:3] == [
        "[1] same",
        "[1] of one",
        "output of ranks 0,2-3 not shown; run.outcomes has it, or run without --lead",
    ]


def test_notices_come_first():
    shown = plain(view(written((RANKS, "x\n")), notices=("rank 2 is fresh", "● run 12 cannot finish\n  why")))
    assert shown.split("\n")[:4] == ["note: rank 2 is fresh", "● run 12 cannot finish", "  why", "[0-3] x"]


# ---- the last line


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "run 12 · 4 ranks · 0.03 s"),
        ({"ranks": (1,), "outcomes": {1: ok()}, "elapsed": 1.26}, "run 12 · 1 rank · 1.3 s"),
        ({"elapsed": 75.2}, "run 12 · 4 ranks · 1 min 15 s"),
        ({"elapsed": 7260.0}, "run 12 · 4 ranks · 2 h 1 min"),
        ({"state": "waiting", "outcomes": {}}, "run 12 · waiting · 4 ranks"),
        (
            {"state": "running", "elapsed": 4.9, "outcomes": dict.fromkeys((0, 1, 3), ok())},
            "run 12 · 3 of 4 ranks done · 4 s · running on rank 2",
        ),
        ({"outcomes": dict.fromkeys(RANKS, ok()) | {2: failed()}}, "run 12 · 4 ranks · 0.03 s · 1 failed"),
        (
            {"outcomes": dict.fromkeys(RANKS, ok()) | dict.fromkeys((1, 3), failed(kind="timeout")), "timeout": 20.0},
            "run 12 · 4 ranks · 0.03 s · 2 timed out",
        ),
        ({"outcomes": dict.fromkeys(RANKS, Outcome(kind="interrupted"))}, "run 12 · 4 ranks · 0.03 s · 4 interrupted"),
        (
            {"outcomes": dict.fromkeys((0, 1, 3), failed(echo=True)) | {2: Outcome(kind="lost", duration=9.0)}},
            "run 12 · 4 ranks · 0.03 s · 1 lost",
        ),
    ],
)
def test_footer(changes, expected):
    assert view(**changes).footer == expected
    assert plain(view(**changes)).endswith(expected)
    assert Tags(markup(view(**changes))).text.endswith(expected)


# ---- what went wrong

ECHO = {"ename": "RuntimeError", "evalue": "[gloo/pair.cc:598] Connection closed by peer [10.0.0.1]:1234", "echo": True}


def test_the_first_cause_comes_first_and_echoes_are_folded_under_it():
    # the echo ended earlier by the ranks' own clocks; it is an echo all the same
    outcomes = {0: failed(**ECHO, duration=0.9), 1: failed(**ECHO), 2: failed(evalue="bad <3>"), 3: failed(**ECHO)}
    shown = markup(view(outcomes=outcomes))
    box, echoes = shown.split("failed because of rank 2")
    assert "rank 2 (node 1, beta) failed: ValueError: bad &lt;3&gt;" in box
    assert "line 5: dist.all_reduce(t)" in box
    assert "Traceback (most recent call last)" in box
    assert "Connection closed" not in box
    assert "Connection closed" in echoes
    text = plain(view(outcomes=outcomes))
    assert text.index("rank 2 (node 1, beta) failed") < text.index("ranks 0-1,3 failed because of rank 2: RuntimeError")


@pytest.mark.parametrize(
    ("outcomes", "first_failed", "heads"),
    [
        # alike but for numbers: one cause
        (
            {0: failed(evalue="bad 0"), 1: failed(evalue="bad 1")},
            None,
            ["ranks 0-1 (node 0, alpha) failed: ValueError: bad 0 | 1"],
        ),
        # the earliest first
        (
            {0: failed("KeyError", "a", duration=2.0), 1: failed("TypeError", "b", duration=1.0)},
            None,
            ["rank 1 (node 0, alpha) failed: TypeError: b", "rank 0 (node 0, alpha) failed: KeyError: a"],
        ),
        # unless it is known which one was first
        (
            {0: failed("KeyError", "a", duration=2.0), 1: failed("TypeError", "b", duration=1.0)},
            0,
            ["rank 0 (node 0, alpha) failed: KeyError: a", "rank 1 (node 0, alpha) failed: TypeError: b"],
        ),
        # the same error at another line is another cause
        (
            {0: failed(line=1, duration=1), 3: failed(line=2, duration=2)},
            None,
            ["rank 0 (node 0, alpha) failed: ValueError: bad", "rank 3 (node 1, beta) failed: ValueError: bad"],
        ),
        # ranks of two nodes
        ({1: failed(), 2: failed()}, None, ["ranks 1-2 (nodes 0-1) failed: ValueError: bad"]),
        # only echoes: the first stands as the cause
        ({1: failed(echo=True, evalue="peer")}, None, ["rank 1 (node 0, alpha) failed: ValueError: peer"]),
        (
            {2: Outcome(kind="lost", error=ErrorInfo("killed", "signal 9"))},
            None,
            ["rank 2 (node 1, beta) lost: signal 9"],
        ),
    ],
)
def test_causes(outcomes, first_failed, heads):
    shown = view(outcomes=dict.fromkeys(RANKS, ok()) | outcomes, first_failed=first_failed)
    assert [html.unescape(h) for h in re.findall(r"<strong>(.*?)</strong>", markup(shown))] == heads
    assert [line for line in plain(shown).split("\n") if line in heads] == heads


def test_long_tracebacks_of_later_causes_stay_closed():
    outcomes = {0: failed("KeyError", "a", duration=1), 1: failed("TypeError", "b", duration=2)}
    assert re.findall(r"<details( open)?", markup(view(outcomes=outcomes))) == [" open", ""]


def test_a_traceback_that_only_repeats_the_message_is_left_out():
    error = ErrorInfo("UsageError", "no frame", ("\x1b[31mUsageError\x1b[39m: no frame",), None, None)
    shown = view(outcomes={0: Outcome(kind="error", error=error)})
    assert plain(shown).count("UsageError: no frame") == 1
    assert "<details" not in markup(shown)


# ---- nobody's text becomes markup

anything = st.one_of(st.just(EVIL), st.text(max_size=30), st.text("<>&\"'\x1b[0;31m\r\n\b", max_size=40))


@given(anything, anything, anything, anything)
def test_user_text_never_becomes_markup(text, name, source, notice):
    transcript = Transcript(RANKS)
    transcript.feed(Text((0, 1), "stdout", text))
    transcript.feed(Text((2,), "stderr", text + "\n"))
    transcript.feed(Display((3,), {"text/plain": text}, is_result=True))
    transcript.feed(Tail(1, "stdout", 1, 1, text))
    error = ErrorInfo(name, text, (text, name), 3, source)
    echo = ErrorInfo(name, text, (), 3, source, is_echo=True)
    outcomes = {0: Outcome(kind="error", error=error), 1: Outcome(kind="error", error=echo), 2: Outcome(kind="lost")}
    for lead in (None, 0):
        shown = view(transcript, outcomes=outcomes, notices=(notice,), lead=lead)
        tags = Tags(markup(shown))
        assert set(tags.tags) <= OUR_TAGS
        assert tags.attributes <= {"style", "title", "open"}
        assert not tags.open
        assert "\x1b" not in plain(shown)


def test_a_script_arrives_as_text_from_everywhere():
    transcript = Transcript(RANKS)
    transcript.feed(Text(RANKS, "stdout", EVIL + "\n"))
    transcript.feed(Text(RANKS, "stderr", EVIL + "\n"))
    outcomes = {0: failed(EVIL, EVIL), 1: failed(EVIL, EVIL, echo=True)}
    shown = markup(view(transcript, outcomes=outcomes, notices=(EVIL,)))
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") >= 6
    cells = Table.of([EVIL], [[EVIL]]).html()
    assert "<script" not in cells


@given(st.text("ab<&\x1b[]0123456789;mKH\x07\\", max_size=60))
def test_any_escape_sequence_can_be_read(text):
    assert "\x1b" not in text_markup.strip(text)
    tags = Tags(text_markup.to_html(text))
    assert tags.text == text_markup.strip(text)
    assert set(tags.tags) <= {"span"}


# ---- sizes


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(RANKS), st.sampled_from(["x", "<", "é", "\x1b[31m<", "\x1b[1mx\n"]), st.integers(1, 800)
        ),
        max_size=12,
    ),
    st.sampled_from([None, 0, 3]),
    st.integers(0, 30),
    st.sampled_from([20_000, 50_000]),
)
def test_each_representation_stays_within_its_limit(steps, lead, causes, limit):
    ranks = tuple(range(max(4, causes)))
    transcript = Transcript(ranks)
    for rank, text, times in steps:
        transcript.feed(Text((rank,), "stdout", text * times + "\n"))
        transcript.feed(Display((rank,), {"text/plain": text * times, "text/html": "<b>x</b>" * times}))
    word = "\x1b[1m<é"
    outcomes = {r: failed(chr(65 + r) * 300, word * 5000, echo=r % 3 == 2, line=r) for r in range(causes)}
    shown = view(transcript, outcomes=outcomes, ranks=ranks, lead=lead, notices=(word * 900,) * 9)
    bundle = render(shown, limit)
    for content in (bundle["text/plain"], bundle["text/html"], json.dumps(bundle[MIME], ensure_ascii=False, indent=1)):
        assert len(content.encode()) <= limit
    assert not Tags(render(shown, limit)["text/html"]).open


def test_the_middle_is_left_out_with_an_exact_count():
    transcript = Transcript(RANKS)
    for i in range(20_000):
        transcript.feed(Text((0, 1), "stdout", f"line {i} of two\n"))
        if i % 2:
            transcript.feed(Text((3,), "stdout", f"line {i} of three\n"))
    for mime, content in texts(view(transcript)).items():
        text = content if mime == "text/plain" else html.unescape(content)
        shown = {rank: len(re.findall(rf"line \d+ of {word}", text)) for rank, word in ((0, "two"), (3, "three"))}
        assert left_out(20_000 - shown[0], (0, 1)) in text
        assert left_out(10_000 - shown[3], (3,)) in text
        assert "line 0 of two" in text
        assert "line 19999 of two" in text
        assert 150_000 < len(content.encode()) <= 200_000


@pytest.mark.parametrize(
    ("lines", "ranks", "expected"),
    [
        (1234, (3,), "… 1,234 lines of rank 3 left out; %dist logs -r 3 shows them"),
        (1, (3,), "… 1 line of rank 3 left out; %dist logs -r 3 shows it"),
        (5, (0, 1, 2), "… 5 lines of each of ranks 0-2 left out; %dist logs -r 0-2 shows them"),
    ],
)
def test_what_is_left_out_is_said(lines, ranks, expected):
    assert left_out(lines, ranks) == expected
    transcript = Transcript(RANKS)
    for rank in ranks:
        transcript.feed(Tail(rank, "stdout", lines, 10 * lines, "last"))
    assert expected in plain(view(transcript))


def test_pictures_are_bounded_and_the_newest_are_kept():
    transcript = Transcript(RANKS)
    for i in range(5):
        transcript.feed(Display((i % 4,), {"text/plain": f"picture {i}", "image/png": "ABCD" * 150_000 + f"{i:04}"}))
    shown = markup(view(transcript))
    assert [int(n) for n in re.findall(r'alt="picture (\d)"', shown)] == [2, 3, 4]
    assert "picture 1: image/png of 600,004 characters left out" in shown
    assert len(shown) < IMAGES_LIMIT + 200_000


def test_a_run_is_not_shown_in_too_little_room():
    with pytest.raises(ValueError, match="the least is 20000"):
        render(view(), 100)


def test_very_many_ranks_are_named_shortly():
    odd = tuple(range(1, 2048, 2))
    transcript = Transcript(range(2048))
    transcript.feed(Text(odd, "stdout", "x\n"))
    shown = view(transcript, ranks=tuple(range(2048)), outcomes=dict.fromkeys(odd, failed()), topology=None)
    assert max(map(len, plain(shown).split("\n"))) < 200
    assert "1024 ranks (1,3," in plain(shown)
    assert shown.footer.endswith(" · 1024 failed")


def test_ranks_that_were_ended_at_one_line_stand_together_whatever_ended_their_call() -> None:
    ended = [ErrorInfo("KeyboardInterrupt", "", cell_line=3), ErrorInfo("RuntimeError", "closed by peer", cell_line=3)]
    outcomes = {r: Outcome(kind="interrupted", error=e) for r, e in enumerate(ended)}
    causes, echoes = view(outcomes=outcomes).failures
    assert [f.ranks for f in (*causes, *echoes)] == [(0, 1)]
    places = ("train.py line 5: x()", "train.py line 6: dist.barrier()", "train.py line 5: x()")  # of a script
    for kind in ("interrupted", "error"):
        in_script = {r: Outcome(kind=kind, error=ErrorInfo("E", "", source=at)) for r, at in enumerate(places)}
        causes, echoes = view(outcomes=in_script).failures
        assert [f.ranks for f in (*causes, *echoes)] == [(0, 2), (1,)]


def test_numbers_of_many_ranks_can_be_told_apart_in_every_representation():
    """64 ranks, in an order by chance: a range where it opens to show them by rank, and all of them in plain text."""
    transcript = Transcript(range(64))
    for step in range(2):
        for at in range(64):
            rank = at * 37 % 64
            transcript.feed(Text((rank,), "stdout", f"step {step} loss {step + rank / 100:.2f}\n"))
    made = render(view(ranks=tuple(range(64)), blocks=transcript.blocks()))
    lines = made["text/plain"].splitlines()[:16]
    assert lines[0] == "[0-7] step 0 loss 0.00 | 0.01 | 0.02 | 0.03 | 0.04 | 0.05 | 0.06 | 0.07"
    assert lines[15] == "[56-63] step 1 loss 1.56 | 1.57 | 1.58 | 1.59 | 1.60 | 1.61 | 1.62 | 1.63"
    assert '<summary style="cursor:pointer">[0-63] step 1 loss 1.00 … 1.63 (mean 1.315)</summary>' in made["text/html"]
    assert "[17]</span> step 1 loss 1.17\n" in made["text/html"]
    (segment,) = made[MIME]["segments"]
    assert (segment["kind"], segment["ranks"]) == ("text", "0-63")
    assert segment["text"].splitlines()[0] == "step 0 loss 0.00 … 0.63 (mean 0.315)"
    assert segment["texts"][17] == {"ranks": "17", "text": "step 0 loss 0.17\nstep 1 loss 1.17"}


def test_lines_that_differ_elsewhere_are_one_of_each_rank():
    """Joined, as ``[0-1] 2 | 4 6 done``, they would be read as two lines."""
    for size in (2, 16):
        transcript = Transcript(range(size))
        for step in range(2):
            for rank in range(size):
                transcript.feed(Text((rank,), "stdout", f"{2 * rank} {step} done\n"))
        made = render(view(ranks=tuple(range(size)), blocks=transcript.blocks()))
        expected = [f"[{rank}] {2 * rank} {step} done" for step in range(2) for rank in range(size)]
        assert made["text/plain"].splitlines()[: 2 * size] == expected
        assert made["text/html"].count(" done") == 2 * size
        segments = made[MIME]["segments"]
        assert [(s["kind"], s["ranks"], s["text"]) for s in segments] == [
            ("text", str(rank), f"{2 * rank} {step} done") for step in range(2) for rank in range(size)
        ]


def test_two_values_on_many_ranks_stand_with_their_ranks():
    transcript = Transcript(range(64))
    for rank in range(64):
        transcript.feed(Text((rank,), "stdout", f"half {rank // 32}\n"))
    made = render(view(ranks=tuple(range(64)), blocks=transcript.blocks()))
    assert made["text/plain"].startswith("[0-31] half 0\n[32-63] half 1\n")


def test_progress_bars_of_many_ranks_are_one_that_opens():
    def drawn(ranks, done):
        transcript = Transcript(range(ranks))
        for rank in range(ranks):
            at = done + rank % 7
            bar = f"\rtrain:  {at}%|{'█' * 4:<10}| {at}/100 [00:01<00:01, {at / 3:.2f}it/s, loss={rank}]"
            transcript.feed(Text((rank,), "stderr", bar))
        return render(view(transcript, ranks=tuple(range(ranks)), state="running"))

    few = drawn(4, 40)
    assert [line[:13] for line in few["text/plain"].splitlines()[:4]] == [f"[{r}] train:  4" for r in range(4)]
    many = drawn(64, 40)
    line = "[0-63] train 40-46 % ━━━━━━━━━──╌╌╌╌╌╌╌╌╌╌╌╌╌ 40-46/100 · slowest 10 ranks"
    assert many["text/plain"].splitlines()[0] == line
    assert f"{line}</summary>" in many["text/html"]
    assert "loss=63" in many["text/html"]
    (segment,) = many[MIME]["segments"]
    assert (segment["ranks"], f"[0-63] {segment['text']}") == ("0-63", line)
    assert len(segment["texts"]) == 64
    huge = drawn(3000, 40)
    assert huge["text/plain"].startswith("[0-2999] train 40-46 %")
    assert "the 128 slowest of 3000" in huge["text/html"]
    assert len(huge[MIME]["segments"][0]["texts"]) == 128


@pytest.mark.parametrize(
    ("kind", "rank_2", "is_below"),
    [
        ("missing", failed(), True),  # others waited for a rank that has failed
        ("missing", failed(kind="lost"), True),
        ("missing", failed(kind="timeout"), False),  # it only ended because all did
        ("missing", failed(echo=True), False),
        ("missing", ok(), False),
        ("mismatch", failed(), False),  # the calls that differ are why it failed
    ],
)
def test_the_first_cause_stands_before_the_verdict_and_else_after_it(kind, rank_2, is_below) -> None:
    reason = "rank 2 has not entered barrier #3"
    outcomes = dict.fromkeys(RANKS, failed("KeyboardInterrupt", "", kind="interrupted", line=9)) | {2: rank_2}
    shown = view(outcomes=outcomes, verdict=Verdict(12, kind, (2,), (0, 1, 3), reason))
    for text in texts(shown).values():
        cause = text.find("rank 2 (node 1")
        assert (0 <= cause < text.index(reason)) == is_below, text
    assert render(shown)[MIME]["verdict"].get("follows_failures", False) == is_below
