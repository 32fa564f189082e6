"""The glossary and the code agree: its classes and folders exist, and names in the code are made of known words."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "jdist"
GLOSSARY = ROOT / "docs" / "design" / "glossary.md"
MOST_TERMS = 60

PLAIN = set(
    re.findall(
        r"\w+",
        """
    chart declared feature histogram kept lack logged metric private metrics silence publish publisher series sink
    cgroup cgroups drilled hook hooks numbers set sets sorted unpickler drills fault faults not trials tried unmet
    advice interval intervals keeper many mark metadata next scopes shares
    breakpoint debugger followed inner kind mortem operator pause paused pausing post profile profiler reason resume
    branch resumed resumes stacks stepper stepping stop summary table totals trigger
    abort accept access ack active add address adopt align alignment allowance annotation app appearance apply argument
    array assembler async at attach attempt autoreload bar base be bin bind block body book bootstrap box bridge
    broadcast browser bucket bulk byte callback cap capture carrier case change channel check child children chunk
    clear click clock code collect column command compare comparison compat complete completion compose config
    connection console content context contract control core crash create data debug decide delivery describe
    description detector device diagnosis dial digest directory disk display doctor done down drawn drop dump edge
    element emulator end endpoint enrol entry environment error escalation evaluate event examination examine execute
    exit export expression extension fact fail failure feed fetch file find flight folder folding follow forget fork
    form formatter forward found frame from gap gate gateway get gone graph guard handler handover has head header
    heard held hello help here history hold host ignore import info init input inspect introspection invalid invite
    item job join interpreter kernel key known large launch layout leave ledger lifecycle limit line link list listen
    local location log login lost made magic main make manifest markup match meeting membership merge meter min miss
    missing mix mode model module moment monitor name network not note notebook number numbering object observe on open
    option overdue overrun own pair panel parameter parentless parse parser part partition patch path pending phrase
    picture piece place plan point policy port preflight prefork preload prewarm probe process program progress
    prologue protocol public pull quantity query quorum rate read reap reason rebind rebuilt receive record recorder
    recovery refuse registry reject relay release remote remove render renew renumber replace replaceable replacement
    reply report request requirement resize restart restore result revive rewrite rich ring route row rule run safe
    sample save schema screen script send serve server session set setting shard shell shown shutdown sight silent skip
    snapshot socket source span spawn spec stack start state status step stop store style successor supervisor support
    table tail terminal test text thread tick timeline timeout too tracebacks transfer transition translate translation
    transport tree unpack unresponsive untranslatable up upload usage use value variable variant view visibility wait
    wake want watch weigh welcome widget wire word descriptor descriptors reserve
    background class collection copies copy decision exchange ids nowhere roots
    announced may autosave autosaver keep prepare context finish omission plain point rank sharded sharding survey unit
    delegate awake wakeful selector acceptor clock give late loaded loop measure past ended slow
    conflict page askpass ping chosen leftover begin begun reach answer question
    to from aside buffer carry ddp index kind load memory rebuild refusal write
    attaching backlog batch module signal signals
    comms deliver events models queue sent twin twins views widgets
    folded install installed standard traceback wheel
    attachment collective earlier finding heartbeat interrupt loss message
    operator origin output peer resizing resource starter sync trial
    ansi api chrome cli comm cuda dist fd forkserver gitignore gloo gpu html hub iopub ipykernel jdist json
    jupyter kube kubernetes mpi nccl oom picklable pickle pickler pod ray rpc sigint slurm ssh svg tensor torch
    """,
    )
)
"""Plain words of English and of programming, and names of other software, that need no explanation."""

BANNED = set(
    re.findall(
        r"\w+",
        """
    cradle doubt doubts door doors engine foothold house knock lifeline lifelines lookout newcomer
    newcomers nobody nursery somebody stranger strangers wish wishes
    """,
    )
)
"""Private words and pictures of before. The glossary has the word to use instead."""


@cache
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def classes() -> dict[str, list[str]]:
    """``{class: modules that define one of that name}``."""
    found = defaultdict(list)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def rows() -> list[list[str]]:
    """The cells of the glossary's rows: term, meaning, classes, places."""
    lines = re.findall(r"^\| (.+) \|$", GLOSSARY.read_text(), re.MULTILINE)
    return [cells for line in lines if (cells := line.split(" | "))[0] not in ("term", "---")]


def words_of(name: str) -> list[str]:
    """``LivenessConnection`` and ``liveness_connection``: liveness, connection."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def stems(word: str) -> set[str]:
    """The word, and what it may be an inflection of."""
    found = {word}
    for ending in ("s", "es", "d", "ed", "r", "er", "rs", "ers", "ing"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            stem = word.removesuffix(ending)
            found |= {stem, f"{stem}e"}
            if stem[-1] == stem[-2]:
                found.add(stem[:-1])
    if word.endswith(("ies", "ied")):
        found.add(f"{word[:-3]}y")
    return found


def unknown(name: str, known: set[str]) -> list[str]:
    return [word for word in words_of(name) if not stems(word) & known]


def names() -> Iterator[tuple[str, str]]:
    """Every name of a module, class or function, and where it is."""
    for path, tree in modules().items():
        where = str(path.relative_to(ROOT))
        yield from ((part, where) for part in path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, f"{where}:{node.lineno}"


def prose() -> Iterator[tuple[str, str]]:
    """Every docstring and comment, and where it is."""
    for path, tree in modules().items():
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT:
                    yield token.string, f"{path.relative_to(ROOT)}:{token.start[0]}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                line = getattr(node, "lineno", 1)
                yield ast.get_docstring(node) or "", f"{path.relative_to(ROOT)}:{line}"


def test_the_glossary_is_short_and_has_each_term_once() -> None:
    terms = [cells[0] for cells in rows()]
    assert 40 < len(terms) <= MOST_TERMS
    assert len(set(terms)) == len(terms)
    for term, meaning, *_ in rows():
        assert meaning.endswith("."), term
        assert ". " not in meaning, f"{term}: one sentence"


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: cells[0])
def test_classes_and_places_of_a_term_exist(cells: list[str]) -> None:
    _, _, named, places = cells
    assert named, "a term has a class"
    assert not [name for name in re.findall(r"`(\w+)`", named) if name not in classes()]
    assert places, "a term has a place"
    assert not [place for place in re.findall(r"`([^`]+)`", places) if not (PACKAGE / place).exists()]


def test_no_two_classes_have_the_same_name() -> None:
    assert not {name: places for name, places in classes().items() if len(places) > 1}


def test_names_of_classes_and_modules_are_made_of_known_words() -> None:
    known = PLAIN | {word for cells in rows() for word in cells[0].split()}
    found = {name: words for name in classes() if (words := unknown(name, known))}
    for path in modules():
        for part in path.relative_to(PACKAGE).with_suffix("").parts:
            if words := unknown(part, known):
                found[str(path.relative_to(ROOT))] = words
    assert not found, "use a term of docs/design/glossary.md, or add one there; a plain word goes into PLAIN above"


def test_private_words_of_before_are_gone() -> None:
    in_names = [f"{where} {name}" for name, where in names() if BANNED & set(words_of(name))]
    assert not in_names
    in_prose = [
        f"{where} {words}" for text, where in prose() if (words := BANNED & set(re.findall("[a-z]+", text.lower())))
    ]
    assert not in_prose


def test_what_is_unknown_or_banned_would_be_found() -> None:
    assert unknown("RankPollers", {"rank", "poll"}) == []
    assert unknown("CradleKeeper", {"rank", "poll"}) == ["cradle", "keeper"]
    assert not BANNED & PLAIN
    assert sum(1 for _ in names()) > 2000
    assert sum(1 for text, _ in prose() if text) > 1500
