"""Tracebacks: frames of installed packages are one line, and nothing of the user's own frames is lost."""

from __future__ import annotations

import re

import pytest

from jdist.core.outcome import ErrorInfo, Outcome
from jdist.notebook.output.render import render
from jdist.notebook.output.run_json import MIME
from jdist.notebook.output.run_view import RunView
from jdist.notebook.text.folding import FoldedFrames, fold_frames
from jdist.notebook.text.markup import marked_pieces

TORCH = "/v/lib/python3.11/site-packages/torch"
HEAD = "\x1b[31mValueError\x1b[39m   Traceback (most recent call last)"
CELL = "Cell In[1], line 3\n----> 3 train()\n"
LINEAR = f"File {TORCH}/nn/modules/linear.py:134, in Linear.forward(self, input)\n--> 134 return F.linear(input)\n"
MODULE = f"\x1b[36mFile \x1b[39m{TORCH}/nn/modules/module.py:17, in Module._call_impl(self)\n--> 17 forward()\n"
JSON = "File /usr/lib/python3.11/json/decoder.py:337, in decode(self)\n--> 337 raise\n"
SKIPPED = "[... skipping similar frames: Module._call_impl at line 17 (40 times)]"
PATHS = {LINEAR: "torch/nn/modules/linear.py", MODULE: "torch/nn/modules/module.py", JSON: "json/decoder.py"}


def error(*entries: str, name: str = "ValueError", text: str = "bad") -> ErrorInfo:
    return ErrorInfo(name, text, entries, 3, "train()", installed=tuple(PATHS.get(each, "") for each in entries))


def pieces(*entries: str) -> list[str]:
    return [f"<{each.summary}>" if isinstance(each, FoldedFrames) else each for each in fold_frames(error(*entries))]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((HEAD, CELL, "ValueError: bad"), [f"{HEAD}\n{CELL}\nValueError: bad"]),
        (
            (HEAD, CELL, MODULE, LINEAR, "ValueError: bad"),
            [
                f"{HEAD}\n{CELL}",
                "<… 2 frames in torch; the last is Linear.forward, torch/nn/modules/linear.py:134>",
                "ValueError: bad",
            ],
        ),
        (
            (HEAD, CELL, MODULE, SKIPPED, JSON, CELL, MODULE, CELL, "ValueError: bad"),
            [
                f"{HEAD}\n{CELL}",
                "<… 2 frames in torch, json>",
                CELL,
                "<… 1 frame in torch>",
                f"{CELL}\nValueError: bad",
            ],
        ),
        (
            (HEAD, CELL, JSON, "KeyError: 1", "\nDuring handling of the above …\n", CELL, "ValueError: bad"),
            [
                f"{HEAD}\n{CELL}",
                "<… 1 frame in json; the last is decode, json/decoder.py:337>",
                f"KeyError: 1\n\nDuring handling of the above …\n\n{CELL}\nValueError: bad",
            ],
        ),
        ((HEAD, SKIPPED, CELL, "ValueError: bad"), [f"{HEAD}\n{SKIPPED}\n{CELL}\nValueError: bad"]),
    ],
)
def test_consecutive_frames_of_packages_are_one_line(entries: tuple[str, ...], expected: list[str]) -> None:
    assert pieces(*entries) == expected


def test_the_text_of_all_pieces_is_the_traceback() -> None:
    info = error(HEAD, CELL, MODULE, SKIPPED, LINEAR, CELL, JSON, "ValueError: bad")
    text = "\n".join(each.text if isinstance(each, FoldedFrames) else each for each in fold_frames(info))
    assert text == "\n".join(info.traceback)


def test_a_traceback_that_was_shortened_since_is_shown_as_it_is() -> None:
    assert fold_frames(ErrorInfo("ValueError", "bad", ("ValueError: bad",), installed=("", "", "torch/a.py"))) == [
        "ValueError: bad"
    ]


def run_of(*infos: ErrorInfo, is_full: bool = False) -> RunView:
    outcomes = {rank: Outcome(kind="error", error=info, duration=rank) for rank, info in enumerate(infos)}
    return RunView(run=12, ranks=tuple(outcomes), state="done", outcomes=outcomes, is_full=is_full)


DEEP = (HEAD, CELL, *[MODULE] * 40, LINEAR, "ValueError: bad")


def test_plain_text_has_the_line_and_says_once_how_the_frames_are_shown() -> None:
    shown = render(run_of(error(*DEEP), error(HEAD, CELL, JSON, "KeyError: bad", name="KeyError")))["text/plain"]
    assert "  … 41 frames in torch; the last is Linear.forward, torch/nn/modules/linear.py:134 (" in shown
    assert shown.count("%dist output 12 --full") == 1
    assert "… 1 frame in json" in shown
    assert "-> 17" not in shown
    assert "----> 3 train()" in shown


def test_html_opens_to_the_frames_and_the_short_traceback_stands_open() -> None:
    bundle = render(run_of(error(*DEEP)))
    shown = bundle["text/html"]
    assert "<details open" in shown
    folded = re.search(
        r"<details style[^>]*><summary[^>]*>… 41 frames in torch[^<]*</summary>(.*?)</details>", shown, re.DOTALL
    )
    assert folded is not None
    assert folded[1].count("--&gt; 17 forward()") == 40
    found = marked_pieces(shown)[bundle[MIME]["failures"][0]["traceback"]]
    assert "… 41 frames in torch" in found
    assert found.endswith("ValueError: bad</pre>")


def test_the_whole_traceback_is_shown_if_that_is_wanted() -> None:
    bundle = render(run_of(error(*DEEP), is_full=True))
    for shown in (bundle["text/plain"], bundle["text/html"]):
        assert shown.count("17 forward()") == 40
        assert "frames in torch" not in shown


def test_a_traceback_without_room_for_its_folded_frames_keeps_the_lines_for_them() -> None:
    many = [MODULE.replace("forward()", "x" * 2000)] * 40
    PATHS[many[0]] = PATHS[MODULE]
    shown = render(run_of(error(HEAD, CELL, *many, LINEAR, "ValueError: bad")))["text/html"]
    assert "… 41 frames in torch; the last is Linear.forward" in shown
    assert "xxxx" not in shown


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("<A object at 0x7f92bd9a7b90>", "<A object at 0x7f92bd9a7110>"),
        ("a request of 7f92bd9a7b90", "a request of a1b2c3d4e5f6"),
        ("job 550e8400-e29b-41d4-a716-446655440000", "job 123e4567-e89b-12d3-a456-426614174000"),
        ("loss 1.5e-03 at line 12", "loss 2 at line 107"),
    ],
)
def test_errors_that_differ_in_addresses_and_numbers_are_one_cause(first: str, second: str) -> None:
    infos = [error(HEAD, CELL, LINEAR, f"ValueError: {text}", text=text) for text in (first, second)]
    (cause,), _ = run_of(*infos).failures
    assert cause.ranks == (0, 1)
