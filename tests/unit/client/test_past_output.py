"""Past output: those who come later see what is to be seen, and what was replaced takes no memory."""

from __future__ import annotations

from jdist.client.run import PastOutput
from jdist.core.messages.runs import Clear, Display, Output, OutputItem, RunStarted, Tail, Text


def kept(*items: OutputItem) -> list[OutputItem]:
    past = PastOutput(7)
    for item in items:
        past.add(Output(7, (item,)))
    return [item for message in past for item in message.items]  # type: ignore[attr-defined]


def shown(text: str, *ranks: int, **more: object) -> Display:
    return Display(ranks or (0,), {"text/plain": text}, **more)  # type: ignore[arg-type]


def test_everything_else_stays_in_its_order() -> None:
    past = PastOutput(7)
    past.add(RunStarted(7))
    past.add(Output(7, (Text((0,), "stdout", "a"), shown("x"))))
    tails = [Tail(0, "stdout", n, n, "end") for n in range(3)]
    for tail in tails:
        past.add(Output(7, (tail,)))
    past.add(Output(7, (Text((1,), "stderr", "b"),)))
    assert list(past) == [
        RunStarted(7),
        Output(7, (Text((0,), "stdout", "a"),)),
        Output(7, (shown("x"),)),
        Output(7, (Text((1,), "stderr", "b"),)),
        Output(7, (tails[-1],)),
    ]


def test_a_thousand_frames_of_an_animation_are_one() -> None:
    clear = Clear((0,), wait=True)
    found = kept(*(each for n in range(1000) for each in (clear, shown(f"frame {n}"))))
    assert [item for item in found if isinstance(item, Display)] == [shown("frame 999")]


def test_a_clear_that_waits_takes_effect_with_the_next_output_of_its_rank() -> None:
    clear = Clear((0,), wait=True)
    assert kept(shown("a"), clear) == [shown("a"), clear]
    assert kept(shown("a"), clear, shown("b", 1)) == [shown("a"), clear, shown("b", 1)]
    assert kept(shown("a"), clear, Text((0,), "stdout", "b")) == [clear, Text((0,), "stdout", "b")]


def test_a_clear_at_once_is_that_of_its_ranks_and_its_area() -> None:
    other = shown("widget", 0, 1, area="3")
    assert kept(shown("both", 0, 1), other, Clear((0,))) == [shown("both", 1), other, Clear((0,))]


def test_an_update_takes_the_place_of_what_it_changes() -> None:
    first, update = shown("0 %", 0, 1, display_id="bar"), shown("9 %", 0, 1, display_id="bar", is_update=True)
    assert kept(first, Text((0,), "stdout", "t"), update) == [
        shown("9 %", 0, 1, display_id="bar"),
        Text((0,), "stdout", "t"),
    ]
    of_one = shown("5 %", 0, display_id="bar", is_update=True)
    assert kept(first, of_one) == [first, of_one]
    assert kept(of_one, of_one) == [of_one], "of a display of another cell"
    assert kept(first, Clear((0, 1)), update) == [Clear((0, 1)), update]


def test_an_update_does_not_clear() -> None:
    first, clear, update = (
        shown("a", display_id="x"),
        Clear((0,), wait=True),
        shown("b", display_id="x", is_update=True),
    )
    assert kept(first, clear, update) == [shown("b", display_id="x"), clear]
