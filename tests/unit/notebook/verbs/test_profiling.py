"""%%dist --profile and %dist profile: the options, and what is shown when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jdist.core.errors import UsageError
from jdist.core.profile import LEAST_OPERATORS, MOST_OPERATORS, ProfileOptions
from jdist.notebook.options import cell_parser, split_words
from jdist.notebook.session import Session
from jdist.notebook.verbs.diagnosis import options_of, show_profile
from jdist.notebook.verbs.registry import call


def options(line: str, ranks: int = 4) -> ProfileOptions | None:
    return options_of(cell_parser().parse(split_words(line)), ranks)


def test_the_options_of_a_cell() -> None:
    assert options("-r 0") is None
    most = MOST_OPERATORS // 4
    assert options("--profile") == ProfileOptions(most_operators=most)
    assert options("--profile=a.json -r 0") == options("--profile a.json") == options("--profile")
    scheduled = options("--profile --profile-steps wait=1,warmup=2,active=3,repeat=4 --profile-activities cpu,cuda")
    assert scheduled == ProfileOptions(("cpu", "cuda"), 1, 2, 3, 4, most)
    many = options("--profile", 100_000)
    assert many is not None
    assert many.most_operators == LEAST_OPERATORS


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--profile-steps active=1", "require --profile"),
        ("--profile --profile-steps wait=1", "needs active steps"),
        ("--profile --profile-steps 3", "is not part of a schedule"),
        ("--profile --profile-steps active=-3", "is not part of a schedule"),
        ("--profile --profile-activities gpu", "cannot profile the activity gpu; choose from cpu, cuda"),
    ],
)
def test_what_is_wrong_is_said(line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        options(line)


class Found:
    """A profile."""

    def _repr_mimebundle_(self) -> dict[str, Any]:
        return {"text/plain": "where the time went"}

    def save(self, path: str) -> Path:
        return Path(path)


class Cluster:
    """One whose run 3 was profiled."""

    name = "c"

    def __init__(self) -> None:
        self.asynchronous = SimpleNamespace(link=SimpleNamespace(lost="", is_sound=True), watch=lambda _: lambda: None)

    def read_profile(self, run: Any = 0) -> Found:
        number = getattr(run, "number", run)
        if number not in (0, 3):
            raise UsageError(f"there is no profile of run {number}")
        return Found()


def session() -> tuple[Session, list[str]]:
    texts: list[str] = []
    screen = SimpleNamespace(is_live=False, show=lambda bundle: texts.append(bundle["text/plain"]))
    made = Session(screen, {}, "notebook")  # type: ignore[arg-type]
    made.use(Cluster())  # type: ignore[arg-type]
    return made, texts


def test_a_profile_is_shown_and_written() -> None:
    s, texts = session()
    call(s, "profile", ["--run", "3", "--save", "p.json"])
    assert texts == ["where the time went", "written to p.json; open it at ui.perfetto.dev"]
    texts.clear()
    profiled, other, failed = (SimpleNamespace(number=n, outcomes={}) for n in (3, 4, 5))
    failed.outcomes[0] = SimpleNamespace(error="its own")
    show_profile(s, profiled, "", is_over=True)  # type: ignore[arg-type]
    show_profile(s, other, "p.json", is_over=True)  # type: ignore[arg-type]
    show_profile(s, failed, "", is_over=True)  # type: ignore[arg-type]
    show_profile(s, profiled, "p.json", is_over=False)  # type: ignore[arg-type]
    assert texts == [
        "where the time went",
        "there is no profile of run 4",
        "%dist profile will show the profile when the run is over",
    ]


def test_without_a_profile_the_way_to_one_is_named() -> None:
    s, _ = session()
    with pytest.raises(UsageError, match="no profile of run 4; a cell that begins with %%dist --profile records one"):
        call(s, "profile", ["--run", "4"])
