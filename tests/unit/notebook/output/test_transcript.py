"""The merged view of a run: nothing lost, nothing moved to another rank, equal things once."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.core.messages.runs import Clear, Display, Tail, Text
from jdist.core.outcome import WIDGET_VIEW, OutputEntry, OutputLine, RichOutput, SkippedLines
from jdist.notebook.output.terminal_emulator import LineAssembler, LineStream
from jdist.notebook.output.transcript import Block, Transcript
from jdist.notebook.text.folding import joined, skeleton, summarized

RANKS = (0, 1, 2, 3)


def of_rank(blocks: list[Block], rank: int) -> list[OutputEntry]:
    """What the view shows of this rank, in its order."""
    return [part.item for block in blocks for part in block.parts if rank in part.ranks]


def texts(blocks: list[Block], rank: int, stream: str | None = None) -> list[str]:
    items = of_rank(blocks, rank)
    return [i.text for i in items if isinstance(i, OutputLine) and stream in (None, i.stream)]


def shape(blocks: list[Block]) -> list[tuple[tuple[int, ...], list[str]]]:
    return [(b.ranks, [getattr(p.item, "text", "") for p in b.parts]) for b in blocks]


def fed(*steps: tuple[tuple[int, ...], str]) -> Transcript:
    transcript = Transcript(RANKS)
    for ranks, text in steps:
        transcript.feed(Text(ranks, "stdout", text))
    return transcript


line_texts = st.one_of(
    st.sampled_from(["ok", "", "step 1", "step 2", "loss 0.1", "loss 0.2", "epoch 10 of 20 begins now", "a|b", "0"]),
    st.text(st.characters(exclude_categories=["C"]), max_size=6),
)
rank_sets = st.sets(st.sampled_from(RANKS), min_size=1).map(lambda s: tuple(sorted(s)))


@given(st.lists(st.tuples(rank_sets, st.sampled_from(["stdout", "stderr"]), line_texts), max_size=60))
def test_each_ranks_lines_are_what_was_fed_for_any_interleaving(steps):
    transcript = Transcript(RANKS)
    expected = {rank: [] for rank in RANKS}
    for ranks, stream, text in steps:
        transcript.feed(Text(ranks, stream, text + "\n"))
        for rank in ranks:
            expected[rank].append((stream, text))
    blocks = transcript.blocks()
    for rank in RANKS:
        assert [(i.stream, i.text) for i in of_rank(blocks, rank)] == expected[rank]
        assert [(i.rank, i.stream, i.text) for i in transcript.items(rank)] == [(rank, *e) for e in expected[rank]]


@given(st.lists(line_texts, max_size=25), st.data())
def test_equal_sequences_become_one_for_any_interleaving(lines, data):
    left = {rank: list(lines) for rank in RANKS}
    transcript = Transcript(RANKS)
    while ready := [rank for rank in RANKS if left[rank]]:
        rank = data.draw(st.sampled_from(ready))
        for _ in range(data.draw(st.integers(1, 6))):
            if left[rank]:
                transcript.feed(Text((rank,), "stdout", left[rank].pop(0) + "\n"))
    assert shape(transcript.blocks()) == [(RANKS, [line]) for line in lines]


@given(st.lists(st.tuples(rank_sets, line_texts, st.booleans()), max_size=40), st.data())
def test_text_may_come_in_any_pieces(steps, data):
    whole, pieces = Transcript(RANKS), Transcript(RANKS)
    for ranks, text, ends in steps:
        full = text + ("\n" if ends else "")
        whole.feed(Text(ranks, "stdout", full))
        cut = data.draw(st.integers(0, len(full)))
        pieces.feed(Text(ranks, "stdout", full[:cut]))
        pieces.feed(Text(ranks, "stdout", full[cut:]))
    for rank in RANKS:
        assert texts(whole.blocks(), rank) == texts(pieces.blocks(), rank)
    whole.close()
    for rank in RANKS:
        assert [i.text for i in whole.items(rank)] == texts(whole.blocks(), rank)


@given(
    st.lists(st.tuples(st.sampled_from(["line", "rich", "clear", "clear later"]), rank_sets, line_texts), max_size=40)
)
def test_displays_and_clearing_keep_each_ranks_order(steps):
    transcript = Transcript(RANKS)
    model: dict[int, list[str]] = {rank: [] for rank in RANKS}
    waiting: set[int] = set()
    for what, ranks, text in steps:
        if what in ("line", "rich"):
            for rank in waiting & set(ranks):
                model[rank] = []
            waiting -= set(ranks)
        if what == "line":
            transcript.feed(Text(ranks, "stdout", text + "\n"))
        elif what == "rich":
            transcript.feed(Display(ranks, {"text/plain": text}))
        else:
            transcript.feed(Clear(ranks, wait=what == "clear later"))
        for rank in ranks:
            if what in ("line", "rich"):
                model[rank].append(text)
            elif what == "clear":
                model[rank] = []
                waiting.discard(rank)
            else:
                waiting.add(rank)
    for rank in RANKS:
        shown = [
            i.text if isinstance(i, OutputLine) else i.data["text/plain"] for i in of_rank(transcript.blocks(), rank)
        ]
        assert shown == model[rank]


@given(st.lists(st.tuples(rank_sets, line_texts), max_size=40), st.lists(st.tuples(rank_sets, line_texts), max_size=20))
def test_what_every_rank_has_passed_never_changes(first, second):
    transcript = fed(*((ranks, text + "\n") for ranks, text in first), (RANKS, "here all ranks stand together\n"))
    settled = transcript.blocks()
    for ranks, text in second:
        transcript.feed(Text(ranks, "stdout", text + "\n"))
    assert transcript.blocks()[: len(settled)] == settled


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([((0,), "a\nb\n"), ((1,), "a\nb\n")], [((0, 1), ["a"]), ((0, 1), ["b"])]),
        # what one rank alone says does not part the others' equal lines, whoever comes first
        ([((0,), "a\nb\n"), ((1,), "mine\na\nb\n")], [((1,), ["mine"]), ((0, 1), ["a"]), ((0, 1), ["b"])]),
        ([((1,), "mine\na\n"), ((0,), "a\n")], [((1,), ["mine"]), ((0, 1), ["a"])]),
        # a rank that ran ahead of a line that all have passed is still joined
        (
            [((0,), "all\na\n"), ((1, 2, 3), "all\n"), ((1,), "mine\na\n")],
            [(RANKS, ["all"]), ((1,), ["mine"]), ((0, 1), ["a"])],
        ),
        # what is not shared stays in the order of arrival
        ([((0,), "red\n"), ((1,), "blue\n"), ((0,), "rose\n")], [((0,), ["red"]), ((1,), ["blue"]), ((0,), ["rose"])]),
        # crossed order cannot be joined
        ([((0,), "x\ny\n"), ((1,), "y\nx\n")], [((0,), ["x"]), ((0, 1), ["y"]), ((1,), ["x"])]),
        ([((0,), "loss 0.1\n"), ((1,), "loss 0.2\n")], [((0, 1), ["loss 0.1", "loss 0.2"])]),
        ([((0,), "loss 0.1\n"), ((1,), "lost 0.2\n")], [((0,), ["loss 0.1"]), ((1,), ["lost 0.2"])]),
        # an equal line nearby is better than one that differs
        ([((0,), "s 1\ns 2\n"), ((1,), "s 2\n")], [((0,), ["s 1"]), ((0, 1), ["s 2"])]),
        # … but not where it is another step's
        (
            [((0,), "n 1\nok\nn 2\nok\n"), ((1,), "n 2\nok\nn 3\nok\n")],
            [((0, 1), ["n 1", "n 2"]), ((0, 1), ["ok"]), ((0, 1), ["n 2", "n 3"]), ((0, 1), ["ok"])],
        ),
        ([((0,), "a|1\n"), ((1,), "a|2\n")], [((0,), ["a|1"]), ((1,), ["a|2"])]),
        ([((0,), "│ 1 │\n"), ((1,), "│ 2 │\n")], [((0,), ["│ 1 │"]), ((1,), ["│ 2 │"])]),
        (
            [((0,), "x" * 90 + " 1\n"), ((1,), "x" * 90 + " 2\n")],
            [((0,), ["x" * 90 + " 1"]), ((1,), ["x" * 90 + " 2"])],
        ),
    ],
)
def test_what_is_joined(steps, expected):
    assert shape(fed(*steps).blocks()) == expected


def test_lines_that_differ_are_joined_for_any_number_of_ranks_step_by_step():
    transcript = Transcript(range(64))
    for step in range(3):
        for rank in range(64):
            transcript.feed(Text((rank * 37 % 64,), "stdout", f"step {step} loss {rank}\n"))
    assert [len(block.ranks) for block in transcript.blocks()] == [64] * 3
    assert texts(transcript.blocks(), 37) == ["step 0 loss 1", "step 1 loss 1", "step 2 loss 1"]


def test_equal_lines_are_joined_for_any_number_of_ranks():
    transcript = Transcript(range(100))
    for rank in range(100):
        transcript.feed(Text((rank,), "stdout", "loss 1\n"))
    assert shape(transcript.blocks()) == [(tuple(range(100)), ["loss 1"])]


def test_streams_are_kept_apart_in_the_order_of_arrival():
    transcript = Transcript(RANKS)
    transcript.feed(Text(RANKS, "stdout", "same\n"))
    transcript.feed(Text(RANKS, "stderr", "same\n"))
    transcript.feed(Text(RANKS, "stdout", "last\n"))
    shown = [(b.ranks, b.parts[0].item.stream, b.parts[0].item.text) for b in transcript.blocks()]
    assert shown == [(RANKS, "stdout", "same"), (RANKS, "stderr", "same"), (RANKS, "stdout", "last")]


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        (["  0%\r 50%\r100%\n"], ["100%"]),
        (["long one\rab\n"], ["abng one"]),
        (["a\r\nb\r\n"], ["a", "b"]),
        (["a\r", "\nb\n"], ["a", "b"]),
        (["abc\b\bX\n"], ["aXc"]),
        (["\b\bx\n"], ["x"]),
        (["abcdef\r\x1b[K12\n"], ["12"]),
        (["abcdef\x1b[2K\rx\n"], ["x"]),
        (["a\x1b[2K", "\n", "a\n"], ["", "a"]),
        (["abc\x1b[1D\x1b[1Kx\n"], ["  x"]),
        (["ab\x1b[3Cx\n"], ["ab   x"]),
        (["abc\x1b[1Gx\n"], ["xbc"]),
        (["\x1b[31mred\x1b[0m plain\n"], ["\x1b[31mred\x1b[0m plain"]),
        (["\x1b[3", "1mred\x1b", "[0m\n"], ["\x1b[31mred\x1b[0m"]),
        (["\x1b[1;32mtwo\nlines\x1b[m\n"], ["\x1b[1;32mtwo\x1b[0m", "\x1b[1;32mlines\x1b[0m"]),
        (["\x1b[31mabc\x1b[39m\rX\n"], ["X\x1b[31mbc\x1b[0m"]),
        (["\x1b]0;title\x07text\n"], ["text"]),
        (["a\x00b\x07c\td\n"], ["abc\td"]),
        (["\x1b[38;5;208mo\x1b[4mo\x1b[0m\n"], ["\x1b[38;5;208moo\x1b[0m"]),
        (["\n\n"], ["", ""]),
    ],
)
def test_text_is_read_as_a_terminal_reads_it(pieces, lines):
    transcript = fed(*(((0,), piece) for piece in pieces))
    assert [item.text for item in transcript.items(0)] == lines


def test_an_open_line_is_seen_while_it_grows_and_ends_with_close():
    transcript = fed((RANKS, "done\n"), (RANKS, " 10%"), (RANKS, "\r 20%"), ((3,), "\r 30%"))
    blocks = transcript.blocks()
    assert [block.ranks for block in blocks] == [RANKS, RANKS]
    assert [i.text for i in transcript.items(2)] == ["done"]
    assert texts(blocks, 2) == ["done", " 20%"]
    assert texts(blocks, 3) == ["done", " 30%"]
    transcript.close([3])
    assert [i.text for i in transcript.items(3)] == ["done", " 30%"]
    assert [i.text for i in transcript.items(2)] == ["done"]
    transcript.close()
    assert [i.text for i in transcript.items(2)] == ["done", " 20%"]
    assert texts(transcript.blocks(), 2) == ["done", " 20%"]


UP, ERASE = "\x1b[A", "\x1b[2K"


def nested(epoch: int, batch: int) -> list[str]:
    """What tqdm writes to draw a bar below another one, in the pieces in which it flushes."""
    return [f"\repoch {epoch}", "\n", f"\rbatch {batch}", UP]


@pytest.mark.parametrize("at_once", [True, False])
def test_bars_below_each_other_are_drawn_over(at_once):
    transcript = fed((RANKS, "begun\n"))
    for epoch in range(3):
        for batch in range(5):
            pieces = nested(epoch, batch + 7)
            for piece in ["".join(pieces)] if at_once else pieces:
                for rank in RANKS:
                    transcript.feed(Text((rank,), "stdout", piece))
                transcript.blocks()
    assert shape(transcript.blocks()) == [(RANKS, ["begun"]), (RANKS, ["epoch 2"]), (RANKS, ["batch 11"])]
    transcript.feed(Text(RANKS, "stdout", "\n\nafter\n"))
    transcript.close()
    assert shape(transcript.blocks())[-1] == (RANKS, ["after"])
    assert texts(transcript.blocks(), 2) == ["begun", "epoch 2", "batch 11", "after"]


def test_a_rank_takes_back_its_own_lines_of_that_stream_only():
    transcript = fed((RANKS, "one\n\x1b[31mtwo\x1b[0m\n"))
    transcript.feed(Text((1,), "stderr", "warning\n"))
    transcript.feed(Text((1,), "stdout", f"{UP}{UP}1\n\x1b[3C{ERASE}new\n"))
    assert texts(transcript.blocks(), 0) == ["one", "\x1b[31mtwo\x1b[0m"]
    assert texts(transcript.blocks(), 1, "stdout") == ["1ne", "   new"]
    assert texts(transcript.blocks(), 1, "stderr") == ["warning"]
    transcript.feed(Display((2,), {"text/plain": "figure"}))
    transcript.feed(Text((2,), "stdout", f"{UP}{UP}below\n"))  # not over what was displayed
    assert texts(transcript.blocks(), 2) == ["one", "\x1b[31mtwo\x1b[0m", "below"]
    transcript.feed(Text((3,), "stdout", "\x1b[9A\r\x1b[J"))  # further up than there are lines
    transcript.close()
    assert texts(transcript.blocks(), 3) == []


drawn = st.lists(
    st.sampled_from(["\n", "\r", "\x1b[A", "\x1b[2A", "\x1b[B", "\x1b[2K", "\x1b[J", "a", "bb 1", "c 2"]), max_size=30
)


@given(st.lists(drawn, min_size=2, max_size=4), st.data())
def test_each_rank_has_what_a_terminal_of_its_own_would_show(texts_by_rank, data):
    left = dict(enumerate(map("".join, texts_by_rank)))
    expected = {}
    for rank, text in left.items():
        done: list[str] = []
        alone = LineAssembler(lambda done=done: done.pop() if done else None)
        done += alone.feed(text)
        expected[rank] = done + alone.take()
    transcript = Transcript(left)
    while ready := [rank for rank, text in left.items() if text]:
        rank = data.draw(st.sampled_from(ready))
        cut = data.draw(st.integers(1, len(left[rank])))
        transcript.feed(Text((rank,), "stdout", left[rank][:cut]))
        left[rank] = left[rank][cut:]
        transcript.blocks()
    transcript.close()
    blocks = transcript.blocks()
    assert {rank: texts(blocks, rank) for rank in left} == expected
    assert {rank: [item.text for item in transcript.items(rank)] for rank in left} == expected


def bar(done: int, label: str = "train") -> str:
    return f"\r{label}: {done:>3}%|{'█' * (done // 10):<10}| {done}/100 [00:0{done % 7}<00:01, {done / 3:.2f}it/s]"


def test_bars_of_all_ranks_stand_together_and_are_no_errors():
    transcript = Transcript(range(40))
    for done in (0, 7, 42):
        for rank in range(40):
            transcript.feed(Text((rank,), "stderr", bar(done + rank)))
    (block,) = transcript.blocks()
    assert block.ranks == tuple(range(40))
    assert {part.item.stream for part in block.parts} == {"stdout"}
    for rank in range(40):
        transcript.feed(Text((rank,), "stderr", bar(100) + "\n" + bar(rank, "test")))
    transcript.close()
    assert [block.ranks for block in transcript.blocks()] == [tuple(range(40))] * 2


def test_a_bar_that_passes_the_limit_stands_once():
    transcript = Transcript(RANKS)
    transcript.feed(Text((0,), "stderr", "begun\n" + bar(41)))
    transcript.feed(Tail(0, "stderr", 0, 0, bar(42) + bar(43)))
    assert [text[:10] for text in texts(transcript.blocks(), 0)] == ["begun", "train:  43"]


def test_equal_displays_are_joined_and_others_are_not():
    transcript = Transcript(RANKS)
    transcript.feed(Text((0,), "stdout", "open"))
    transcript.feed(Display((0,), {"text/plain": "6", "text/html": "<b>6</b>"}, is_result=True))
    transcript.feed(Display((1, 2), {"text/html": "<b>6</b>", "text/plain": "6"}, is_result=True))
    transcript.feed(Display((3,), {"text/plain": "7", "text/html": "<b>7</b>"}, is_result=True))
    transcript.feed(Display((3,), {"text/plain": "6", "text/html": "<b>6</b>"}))
    blocks = transcript.blocks()
    assert [b.ranks for b in blocks] == [(0,), (0, 1, 2), (3,), (3,)]
    assert [i.is_result for i in of_rank(blocks, 3)] == [True, False]


def test_an_update_changes_the_display_of_its_ranks_only():
    transcript = Transcript(RANKS)
    transcript.feed(Display(RANKS, {"text/plain": "0 %"}, display_id="bar"))
    transcript.feed(Text(RANKS, "stdout", "after\n"))
    transcript.blocks()
    transcript.feed(Display((1,), {"text/plain": "50 %"}, display_id="bar", is_update=True))
    block = transcript.blocks()[0]
    assert [(p.ranks, p.item.data["text/plain"]) for p in block.parts] == [((0, 2, 3), "0 %"), ((1,), "50 %")]
    transcript.feed(Display((0, 2, 3), {"text/plain": "50 %"}, display_id="bar", is_update=True))
    assert [p.ranks for p in transcript.blocks()[0].parts] == [RANKS]
    transcript.feed(Display(RANKS, {"text/plain": "x"}, display_id="unknown", is_update=True))
    assert [item.data["text/plain"] for item in of_rank(transcript.blocks()[:1], 0)] == ["50 %"]
    assert len(transcript.blocks()) == 2


def test_clearing_touches_no_other_rank_and_may_wait_for_the_next_output():
    transcript = fed((RANKS, "frame\nopen"))
    transcript.feed(Clear((1,)))
    assert texts(transcript.blocks(), 1) == []
    assert texts(transcript.blocks(), 0) == ["frame", "open"]
    transcript.feed(Clear((0,), wait=True))
    assert texts(transcript.blocks(), 0) == ["frame", "open"]
    transcript.feed(Text((0,), "stdout", "next\n"))
    assert texts(transcript.blocks(), 0) == ["next"]
    assert texts(transcript.blocks(), 2) == ["frame", "open"]


def test_clearing_an_output_widget_clears_what_it_has_captured():
    transcript = fed((RANKS, "before\n"))
    for frame in range(3):
        transcript.feed(Clear(RANKS, wait=True, area="1"))
        transcript.feed(Text(RANKS, "stdout", f"frame {frame}\n", area="1"))
        transcript.feed(Display((1, 2), {"text/plain": f"figure {frame}"}, area="1"))
        transcript.feed(Text(RANKS, "stdout", f"beside {frame}\n"))
    expected = ["before", "beside 0", "beside 1", "frame 2", "beside 2"]
    assert texts(transcript.blocks(), 3) == expected
    assert [getattr(i, "text", None) or i.data["text/plain"] for i in of_rank(transcript.blocks(), 1)] == [
        *expected[:4],
        "figure 2",
        "beside 2",
    ]
    transcript.feed(Text((0,), "stdout", "another\n", area="2"))
    transcript.feed(Clear(RANKS, area="1"))
    assert texts(transcript.blocks(), 0) == [*expected[:3], "beside 2", "another"]
    assert [i.text for i in transcript.items(1)] == [*expected[:3], "beside 2"]


def test_a_snapshot_replaces_the_one_before_and_stands_last():
    transcript = fed((RANKS, "first\nhalf"))
    transcript.feed(Tail(2, "stdout", 10, 100, "old\n"))
    transcript.feed(Display((2,), {"text/plain": "figure"}))
    transcript.feed(Tail(2, "stdout", 1234, 56789, "new\nnewest"))
    items = of_rank(transcript.blocks(), 2)
    expected = ["first", "half", "figure", (1234, 56789), "new", "newest"]

    def told(item):
        if isinstance(item, SkippedLines):
            return (item.lines, item.chars)
        return item.text if isinstance(item, OutputLine) else item.data["text/plain"]

    assert [told(i) for i in items] == expected
    transcript.close()
    assert [told(i) for i in transcript.items(2)] == expected
    assert texts(transcript.blocks(), 1) == ["first", "half"]


def test_snapshots_of_several_ranks_are_joined():
    transcript = Transcript(RANKS)
    for rank in RANKS:
        transcript.feed(Tail(rank, "stdout", 5, 50, "alike\n"))
    assert [b.ranks for b in transcript.blocks()] == [RANKS, RANKS]


def test_items_are_given_to_the_ranks_named():
    transcript = Transcript(RANKS)
    transcript.feed(Text((1, 2), "stdout", "x\n"))
    transcript.feed(Display((3,), {"text/plain": "y"}, {}))
    transcript.feed(Tail(3, "stdout", 3, 30, ""))
    blocks = transcript.blocks()
    assert [(b.ranks, b.parts[0].item.rank) for b in blocks] == [((1, 2), 1), ((3,), 3), ((3,), 3)]
    assert isinstance(blocks[1].parts[0].item, RichOutput)
    transcript.feed(Clear((1, 3)))
    assert [b.ranks for b in transcript.blocks()] == [(2,)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["loss 0.1", "loss 0.2"], "loss 0.1 | 0.2"),
        (["step 5 loss 0.1", "step 5 loss -2e-3"], "step 5 loss 0.1 | -2e-3"),
        (["loss (train) 0.1", "loss (train) nan"], "loss (train) 0.1 | nan"),
        (["hello from 0", "hello from 0", "hello from 1"], "hello from 0 | 0 | 1"),
        (["1 of 4 loaded: 7", "1 of 4 loaded: 8"], "1 of 4 loaded: 7 | 8"),
        (["2 6 done", "4 6 done"], None),
        (["rank 0 of 2", "rank 0 of 2", "rank 1 of 2"], None),
        (["took 0.5 s", "took 0.7 s"], None),
        (["rank 0: nan", "rank 1: 3."], None),
        (["7", "7"], None),
    ],
)
def test_lines_are_joined_where_only_the_number_at_their_end_differs(lines, expected):
    assert len({skeleton(line) for line in lines}) == 1
    assert joined(lines) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({(0, 1, 2): "loss 0.50", (3,): "loss 0.9"}, "loss 0.50 … 0.9 (mean 0.6)"),
        ({(0,): "step 3 loss -1", (1,): "step 3 loss 2e1"}, "step 3 loss -1 … 2e1 (mean 9.5)"),
        ({(0,): "rank 0 loss 4", (1,): "rank 1 loss 2"}, None),
        ({(0,): "loss 4 s", (1,): "loss 2 s"}, None),
        ({(0,): "loss 1", (1, 4): "loss nan", (2,): "loss 3"}, "loss 1 … 3 (mean 2) · nan on ranks 1,4"),
        ({(0,): "loss 1", (1,): "loss inf"}, "loss 1 · inf on rank 1"),
        ({(0, 1): "loss nan", (2,): "loss inf"}, "loss nan on ranks 0-1 · inf on rank 2"),
    ],
)
def test_numbers_of_many_ranks_are_a_range(lines, expected):
    assert summarized(lines) == expected


@pytest.mark.parametrize(
    "line",
    [
        "sum 3 [3.0, 3.0]",
        "tensor([0.7071, 0.7071])",
        "         0.2, 0.3]])",
        "{'loss': 0.1}",
        "point (1, 2)",
        "Loss(value=0.1)",
        "<Loss 0.1>",
        "[1] fake",
        "[0-3] loss 0.1",
        "a | 1",
        "● run 1 cannot finish",
        "\x1b[31m1\x1b[0m",
        "1 2 3 4 5",
        "none",
    ],
)
def test_a_line_with_a_value_is_never_joined(line):
    assert skeleton(line) is None


@pytest.mark.parametrize("kind", ["equal", "alternating", "private", "few words", "one after the other"])
def test_the_cost_grows_with_the_lines_and_not_faster(kind):
    count = 20_000
    made = {
        "equal": lambda rank, i: f"step {i} done",
        "alternating": lambda rank, i: f"all say {i}x" if i % 2 else f"{rank}x alone {i}x",
        "private": lambda rank, i: f"{rank}x alone {i}x",
        "few words": lambda rank, i: "abcdefg"[hash((rank, i)) % 7],
        "one after the other": lambda rank, i: f"loss {i}.{rank}",
    }[kind]
    transcript = Transcript(RANKS)
    chunks = [(r, i) for r in RANKS for i in range(0, count, 20)]
    if kind != "one after the other":
        chunks.sort(key=lambda chunk: chunk[1])
    begun = time.process_time()
    for rank, start in chunks:
        transcript.feed(Text((rank,), "stdout", "".join(made(rank, i) + "\n" for i in range(start, start + 20))))
    transcript.blocks()
    assert time.process_time() - begun < 20  # takes one or two; a quadratic way takes minutes
    assert texts(transcript.blocks(), 3) == [made(3, i) for i in range(count)]


def widget(ranks: tuple[int, ...], name: str, **more) -> Display:
    return Display(ranks, {WIDGET_VIEW: {}, "text/plain": name}, **more)


def test_widgets_of_all_ranks_are_one_note_where_the_first_stood():
    transcript = fed((RANKS, "before\n"))
    transcript.feed(widget((0, 1), "IntSlider"))
    transcript.feed(widget((3,), "Text"))
    transcript.feed(Text(RANKS, "stdout", "after\n"))
    for name in ("VBox", "HBox", "IntSlider"):
        transcript.feed(widget((0,), name, is_result=True))
    blocks = transcript.blocks()
    assert [block.ranks for block in blocks] == [RANKS, (0, 1, 3), RANKS]
    note = blocks[1].parts[0].item
    assert list(note.data) == ["text/plain"]
    assert note.data["text/plain"].startswith("HBox, IntSlider, Text and 1 more: widgets of ranks are not connected")
    assert texts(blocks, 0) == ["before", "after"]


def test_a_widget_that_replaces_a_display_leaves_the_other_ranks_display():
    transcript = Transcript(RANKS)
    transcript.feed(Display(RANKS, {"text/plain": "shown"}, display_id="a"))
    transcript.feed(widget((1,), "Text", display_id="a", is_update=True))
    assert [block.ranks for block in transcript.blocks()] == [(1,), (0, 2, 3)]


def test_a_line_screen_notes_the_widgets_of_each_rank_once():
    lines = LineStream()
    assert [line[:22] for line in lines.feed(widget((0, 1), "IntSlider"))] == ["[0-1] IntSlider: widge"]
    assert [line[:16] for line in lines.feed(widget((0, 1, 2), "Text"))] == ["[2] Text: widget"]
    assert not [*lines.feed(widget(RANKS[:3], "Text"))]


def test_bars_that_move_are_lines_of_their_own_and_one_for_many_ranks():
    lines = LineStream()
    bar = "\r{}%|██████    | {}/100 [00:01<00:01]"
    assert [*lines.feed(Text((0, 1), "stderr", "whole\n" + bar.format(1, 1)))] == ["[0-1] whole"]
    lines.feed(Text((0,), "stdout", ""))
    assert not [*lines.feed(Text((1,), "stderr", bar.format(50, 50)))]
    assert lines.open_lines() == [f"[0] {bar.format(1, 1)[1:]}", f"[1] {bar.format(50, 50)[1:]}"]
    for rank in range(20):
        assert not [*lines.feed(Text((rank,), "stderr", bar.format(rank + 1, rank + 1)))]
    assert lines.open_lines() == ["[0-19] 1-20 % ────╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌ 1-20/100 · slowest rank 0"]
    for rank in range(20):
        assert not [*lines.feed(Text((rank,), "stderr", f"\rat {rank} of many, many things"))]
    assert [line[:5] for line in lines.open_lines()] == [*(f"[{rank}] a" for rank in range(8)), "… 12 "]


def test_a_terminal_says_how_many_lines_were_left_out_only_if_some_were() -> None:
    stream = LineStream()
    for rank, lines in enumerate((0, 1, 1234)):
        assert not list(stream.feed(Tail(rank, "stdout", lines, 10 * lines, "newest\n")))
    end = list(stream.close())
    assert [line for line in end if "left out" not in line] == ["[0] newest", "[1] newest", "[2] newest"]
    assert [line.split(";")[0] for line in end if "left out" in line] == [
        "[1] … 1 line of rank 1 left out",
        "[2] … 1,234 lines of rank 2 left out",
    ]
