"""Options: what %%dist and each verb take; and what is wrong is named, with the nearest right word."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from msgspec import json, structs

from jdist.core.errors import JdistError, UsageError
from jdist.core.quantities import ArgumentParser, HelpWanted, parse_duration
from jdist.notebook.magics import DistMagics
from jdist.notebook.options import cell_parser, join_expression, split_words, start_parser
from jdist.notebook.output.screen import Bundle, Update
from jdist.notebook.session import Session
from jdist.notebook.verbs.registry import VERBS, Verb, call


def shown_twice(_: Bundle) -> None:
    raise AssertionError("nothing is shown twice here")


class Paper:
    """A screen that remembers."""

    is_live = False

    def __init__(self) -> None:
        self.texts: list[str] = []

    def show(self, bundle: Bundle) -> Update:
        self.texts.append(bundle["text/plain"])
        return shown_twice

    def ask(self, prompt: str, is_password: bool) -> str:
        raise AssertionError("nobody is asked")


def session() -> tuple[Session, Paper]:
    paper = Paper()
    return Session(paper, {}, "test"), paper


def cell(line: str) -> Any:
    return cell_parser().parse(split_words(line))


# ---------------------------------------------------------------- %%dist


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {"ranks": None, "group": None, "timeout": None, "background": False, "is_setup": False, "lead": None}),
        ("-r 0-3,7", {"ranks": "0-3,7"}),
        ("--ranks=node=1", {"ranks": "node=1"}),
        ("-r node=1,dp=0", {"ranks": "node=1,dp=0"}),
        ("-r !2", {"ranks": "!2"}),
        ("-r -1", {"ranks": "-1"}),
        ("--ranks -2--1 -b", {"ranks": "-2--1", "background": True}),
        ("-r-1", {"ranks": "-1"}),
        ("-b -r -1,0", {"ranks": "-1,0", "background": True}),
        ("-g tp -t 5m", {"group": "tp", "timeout": 300.0}),
        ("-t20s", {"timeout": 20.0}),
        ("--timeout .5", {"timeout": 0.5}),
        ("-o run1 -p 'a, b[0]'", {"out": "run1", "pull": "a, b[0]"}),
        ("--setup --local --lead 2", {"is_setup": True, "local": True, "lead": 2}),
    ],
)
def test_a_cells_options(line: str, expected: dict[str, object]) -> None:
    found = vars(cell(line))
    assert {k: found[k] for k in expected} == expected


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--rank 0", ["--rank", "did you mean --ranks?"]),
        ("--time 20", ["did you mean --timeout?"]),
        ("--tiemout=20", ["did you mean --timeout?"]),
        ("--backgroud", ["did you mean --background?"]),
        ("--set-up", ["did you mean --setup?"]),
        ("--locl", ["did you mean --local?"]),
        ("--led 1", ["did you mean --lead?"]),
        ("--grup x", ["did you mean --group?"]),
        ("--pul x", ["did you mean --pull?"]),
        ("--ot x", ["did you mean --out?"]),
        ("-z", ["-z"]),
        ("0-3", ["0-3"]),
        ("-r", ["-r/--ranks", "expected one argument"]),
        ("-r 0 -g", ["-g/--group", "expected one argument"]),
        ("-t soon", ["-t/--timeout", "20, 20s or 5m", "'soon'"]),
        ("-t 0", ["more than 0"]),
        ("-t=-5", ["more than 0", "'-5'"]),
        ("-t 5d", ["20, 20s or 5m", "'5d'"]),
        ("--lead first", ["--lead", "'first'"]),
        ("-b=yes", ["-b"]),
        ("-o 'open", ["open", "not closed"]),
    ],
)
def test_a_bad_cell_option_is_named(line: str, says: list[str]) -> None:
    with pytest.raises(UsageError) as e:
        cell(line)
    for part in says:
        assert part in str(e.value)


def test_a_bad_option_comes_with_the_usage() -> None:
    with pytest.raises(UsageError, match=r"usage: %%dist \[-r RANKS\]"):
        cell("--nonsense")


@given(st.text(max_size=30))
def test_any_line_is_options_or_a_usage_error(line: str) -> None:
    try:
        cell(line)
    except (UsageError, HelpWanted):
        return


@pytest.mark.parametrize(
    ("text", "value"), [("20", 20.0), ("20s", 20.0), ("1.5m", 90.0), ("1h", 3600.0), (" 2 s ", 2.0), (".25", 0.25)]
)
def test_seconds(text: str, value: float) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "s", "-1", "0", "1e3", "1m30s", "nan", "inf", "one", "9" * 400])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="20, 20s or 5m"):
        start_parser("x").parse([f"--timeout={text}"])


# ---------------------------------------------------------------- verbs


BAD = [
    ("doctor", "--host a", "did you mean --hosts?"),
    ("sync", "src --wach", "does not understand --wach; did you mean --watch?"),
    ("invite", "--expires soon", "expected a time"),
    ("manifest", "kubernete --image lab", "there is none for 'kubernete'; did you mean kubernetes"),
    ("join", "nonsense", "neither a join line nor a file"),
    ("start", "-n", "expected one argument"),
    ("start", "-N two", "'two'"),
    ("start", "--nnode 2", "did you mean --nnodes?"),
    ("start", "--nproc 2", "did you mean --nproc-per-node?"),
    ("start", "--backed gloo", "did you mean --backend?"),
    ("start", "--init_method env://", "did you mean --init-method?"),
    ("start", "--lancher ssh", "did you mean --launcher?"),
    ("start", "--timeout never", "20, 20s or 5m"),
    ("start", "--idle 5", "did you mean --idle-timeout?"),
    ("start", "--nofork", "did you mean --no-fork?"),
    ("start", "4", "does not understand 4; did you mean -n 4?"),
    ("attach", "a b", "does not understand b"),
    ("attach", "--nam a", "--nam"),
    ("list", "all", "does not understand all"),
    ("detach", "now", "does not understand now"),
    ("stop", "--al", "--al"),
    ("status", "-r 0", "-r"),
    ("interrupt", "--rank 0", "did you mean --ranks?"),
    ("interrupt", "0", "does not understand 0; did you mean -r 0?"),
    ("restart", "--group", "expected one argument"),
    ("restart", "--grop tp", "did you mean --group?"),
    ("add-node", "-n 0", "at least 1"),
    ("add-node", "--launch x", "did you mean --launcher?"),
    ("remove", "3", "does not understand 3; did you mean -r 3?"),
    ("remove", "--rank 3", "did you mean --ranks?"),
    ("remove", "", "say which ranks, such as -r 3"),
    ("group", "tp", "ranks"),
    ("group", "", "name"),
    ("mesh", "", "NAME=SIZE"),
    ("groups", "tp", "does not understand tp"),
    ("pull", "", "names"),
    ("pull", "x --ful", "did you mean --full?"),
    ("pull", "--ful x", "did you mean --full?"),
    ("pull", "--ful", "did you mean --full?"),
    ("push", "x --rnaks 0", "did you mean --ranks?"),
    ("broadcast", "x --scr 1", "did you mean --src?"),
    ("broadcast", "x --src one", "'one'"),
    ("restore", "2 x", "--from"),
    ("save", "", "name a folder that all nodes share"),
    ("load", "", "name the folder that %dist save wrote to"),
    ("save", "d --every soon", "'soon'"),
    ("save", "d --keep two", "'two'"),
    ("save", "d --kep 2", "did you mean --keep?"),
    ("load", "d --mapp 1=0", "did you mean --map?"),
    ("scatter", "x --dm 0", "did you mean --dim?"),
    ("scatter", "x --dim one", "'one'"),
    ("gather", "x --dims 0", "did you mean --dim?"),
    ("vars", "--sort shape", "choose from"),
    ("show", "", "name"),
    ("show", "x y", "does not understand y"),
    ("check", "", "expr"),
    ("trace", "--run last", "'last'"),
    ("trace", "--safe f.json", "did you mean --save?"),
    ("metrics", "--cvs f.csv", "did you mean --csv?"),
    ("resources", "--last soon", "'soon'"),
    ("resources", "--cvs f.csv", "did you mean --csv?"),
    ("profile", "--safe f.json", "did you mean --save?"),
    ("run", "script", "SCRIPT.py"),
    ("run", "-t never a.py", "20, 20s or 5m"),
    ("run", "--timout 3 a.py", "did you mean --timeout?"),
    ("auto", "onn", "'on', 'off'"),
    ("auto", "", "state"),
    ("output", "x", "whole number"),
    ("output", "0", "at least 1"),
    ("interrupt", "--run 0", "at least 1"),
    ("export", "", "FILE.py"),
    ("export", "a.py --forse", "did you mean --force?"),
    ("logs", "--line 3", "did you mean --lines?"),
    ("logs", "-n few", "'few'"),
    ("logs", "-n 0", "at least 1"),
    ("logs", "-n -5", "at least 1"),
    ("console", "--rank 0", "did you mean --ranks?"),
    ("panel", "now", "does not understand now"),
    ("pause", "12", "does not understand 12"),
    ("continue", "--rank 0", "did you mean --ranks?"),
    ("where", "up", "does not understand up"),
    ("up", "two", "'two'"),
    ("down", "0", "at least 1"),
    ("step", "2", "does not understand 2"),
    ("next", "--rank 0", "did you mean --ranks?"),
    ("return", "x", "does not understand x"),
    ("until", "", "LINE"),
    ("until", "end", "'end'"),
    ("next-call", "--rank 0", "did you mean --ranks?"),
    ("debug", "12 13", "does not understand 13"),
]


@pytest.mark.parametrize(("verb", "line", "says"), BAD, ids=[f"{v} {line}" for v, line, _ in BAD])
def test_a_bad_word_after_a_verb_is_named(verb: str, line: str, says: str) -> None:
    s, _ = session()
    with pytest.raises(UsageError) as e:
        call(s, verb, split_words(line))
    text = str(e.value).replace("choose from on, off", "choose from 'on', 'off'")  # Python 3.12 writes no quotes
    assert says in text
    assert f"%dist {verb}" in text


def test_every_verb_is_tried() -> None:
    assert {verb for verb, _, _ in BAD} == set(VERBS)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_explains_itself(verb: str) -> None:
    s, paper = session()
    call(s, verb, ["--help"])
    assert f"usage: %dist {verb}" in paper.texts[-1]
    assert VERBS[verb].summary


NEED_A_CLUSTER = sorted(set(VERBS) - {"start", "doctor", "join", "attach", "list", "stop", "auto"})
WORDS = {
    "group": ["g", "0"],
    "sync": ["src"],
    "mesh": ["dp=2"],
    "pull": ["x"],
    "broadcast": ["x"],
    "scatter": ["x"],
    "gather": ["x"],
    "show": ["x"],
    "check": ["x"],
    "push": ["x"],
    "export": ["a.py"],
    "run": [__file__],
    "remove": ["-r", "0"],
    "manifest": ["kubernetes", "--image", "lab"],
    "restore": ["2", "--from", "0", "x"],
    "save": ["d"],
    "load": ["d"],
    "until": ["8"],
}


@pytest.mark.parametrize("verb", NEED_A_CLUSTER)
def test_without_a_cluster_each_verb_says_how_to_get_one(verb: str) -> None:
    s, _ = session()
    s.namespace["x"] = 1
    with pytest.raises(UsageError, match="%dist start to make one"):
        call(s, verb, WORDS.get(verb, []))


@pytest.mark.parametrize(
    ("word", "says"), [("strat", "start"), ("interupt", "interrupt"), ("pul", "pull"), ("statsu", "status")]
)
def test_an_unknown_verb_is_told_the_nearest(word: str, says: str) -> None:
    s, _ = session()
    with pytest.raises(UsageError, match=f"no verb '{word}'; did you mean {says}"):
        call(s, word, [])


@pytest.mark.parametrize(("line", "ranks"), [("tp -1", "-1"), ("tp -2,-1", "-2,-1"), ("tp -2--1", "-2--1")])
def test_negative_ranks_may_stand_alone(line: str, ranks: str) -> None:
    p = ArgumentParser("%dist group", "x")
    p.add_argument("name")
    p.add_argument("members")
    assert p.parse(split_words(line)).members == ranks


def test_a_backslash_with_nothing_after_it_is_named() -> None:
    with pytest.raises(UsageError, match="No escaped character"):
        split_words("x -\\")


@settings(deadline=None)  # a verb may import what it needs when it is first called
@given(st.sampled_from(sorted(set(VERBS) - {"start", "doctor", "attach", "list", "stop", "run"})), st.text(max_size=15))
def test_any_words_after_a_verb_are_a_usage_error_at_worst(verb: str, line: str) -> None:
    s, _ = session()
    try:
        call(s, verb, split_words(line))
    except JdistError:
        return


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("check d['a']", ["check", "d['a']"]),
        ("check d['a b'][0, 1] -r 0-1", ["check", "d['a b'][0, 1]", "-r", "0-1"]),
        ("pull 'a, b' -o x", ["pull", "a, b", "-o", "x"]),
        ("start --name='my cluster'", ["start", "--name=my cluster"]),
        ("run train.py 'two words'", ["run", "train.py", "two words"]),
        ("start --name={d['a b']}", ["start", "--name={d['a b']}"]),
        ("""start --name="{d['a b']}" """, ["start", "--name={d['a b']}"]),
    ],
)
def test_words_keep_an_expressions_quotes(line: str, words: list[str]) -> None:
    assert split_words(line) == words


# ---------------------------------------------------------------- in a notebook's cell


@pytest.fixture
def magics(monkeypatch: pytest.MonkeyPatch) -> Iterator[DistMagics]:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts its own in this place
    shell = InteractiveShell()
    yield DistMagics(shell)
    shell.history_manager.end_session()


@pytest.mark.parametrize("asked", ["%dist {}?", "%dist {} ??", "?%dist {}", "  %dist  {} ? "])
def test_each_verb_shows_its_usage(magics: DistMagics, asked: str) -> None:
    magics.session.screen = paper = Paper()
    for name, known in VERBS.items():
        (line,) = magics.transform([asked.format(name) + "\n"])
        magics.dist(line.strip().removeprefix("%dist"))
        assert paper.texts[-1].startswith(known.parser().format_usage().strip()), name


@pytest.mark.parametrize(
    ("cell", "plain", "auto"),
    [
        ("x\n", "x\n", "%%dist\nx\n"),
        ("# why\nx\n", "# why\nx\n", "%%dist\n# why\nx\n"),
        ("# why\n\n%%dist -r 0\nx\n", "%%dist -r 0\nx\n", "%%dist -r 0\nx\n"),
        ("# why\n%%time\nx\n", "# why\n%%time\nx\n", "%%time\nx\n"),
        ("\n# why\n%matplotlib inline\nx\n", None, None),
        ("# why\n!ls\n", None, None),
        ("# why\n", None, None),
        ("\n", None, None),
        ("x\n%%time\n", "x\n%%time\n", "%%dist\nx\n%%time\n"),
    ],
)
def test_comments_may_stand_above_a_magic(magics: DistMagics, cell: str, plain: str | None, auto: str | None) -> None:
    """None: it stays as it is."""
    assert "".join(magics.transform(cell.splitlines(keepends=True))) == (plain or cell)
    magics.session.is_auto = True
    assert "".join(magics.transform(cell.splitlines(keepends=True))) == (auto or cell)


@pytest.fixture
def seen(magics: DistMagics, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options that each verb was called with, in a shell whose notebook has ``a``, ``n`` and ``d``."""
    found: dict[str, Any] = {}

    def record(name: str, known: Verb) -> Verb:
        def function(_: Session, options: Namespace) -> None:
            found[name] = options

        return structs.replace(known, function=function)

    for name, known in VERBS.items():
        monkeypatch.setitem(VERBS, name, record(name, known))
    shell = magics.session.namespace["get_ipython"]()
    shell.register_magics(magics)
    shell.push({"a": 1, "n": 3, "d": {"k k": "two words"}})
    return found


def run_cell(seen: dict[str, Any], magics: DistMagics, code: str) -> dict[str, Any]:
    """Run a cell of the notebook; returns the options that its verb was called with."""
    seen.clear()
    magics.session.namespace["get_ipython"]().run_cell(code).raise_error()
    (options,) = seen.values()
    return vars(options)


@pytest.mark.parametrize(
    ("line", "name", "expression"),
    [
        ("check f'{a}-{1+1}'", "expr", ["f'{a}-{1+1}'"]),
        ("check f'{{a}}$n'", "expr", ["f'{{a}}$n'"]),
        ("check {a: n}[a] -r {n}", "expr", ["{a: n}[a]"]),
        ("show {a,n}", "name", "{a,n}"),
        ("pull f'{a}' -o b", "names", "f'{a}'"),
        ("push $a", "names", "$a"),
        ("vars {a}*", "pattern", ["{a}*"]),
        ("gather {a}", "name", "{a}"),
        ("save out {a}", "names", ["{a}"]),
        ("restore {n} --from 0 {a}", "names", ["{a}"]),
    ],
)
def test_ranks_get_expressions_as_they_were_typed(
    magics: DistMagics, seen: dict[str, Any], line: str, name: str, expression: object
) -> None:
    assert run_cell(seen, magics, f"%dist {line}")[name] == expression


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("check a -r {n}", "ranks", "3"),
        ("restore {n} --from {a} x", "rank", "3"),
        ("restore {n} --from {a} x", "src", 1),
        ("output {n}", "run", 3),
        ("start -n {n - 1} --name c$n", "nproc_per_node", "2"),
        ("start -n {n - 1} --name c$n", "name", "c3"),
        ("start --name={d['k k']}", "name", "two words"),
        ("""start --name "{d['k k']}-{{n}}" """, "name", "two words-{n}"),
        ("start --name {unknown}", "name", "{unknown}"),
        ("start --name {a/0} --timeout {n}", "name", "{a/0}"),
        ("start --name {a/0} --timeout {n}", "timeout", 3.0),
        ("start --env HOME=$HOME --env N=$n", "env", ["HOME=$HOME", "N=3"]),
        ("run train.py --lr={a/2} $n", "rest", ["train.py", "--lr=0.5", "3"]),
        ("save /tmp/{n} a", "directory", "/tmp/3"),
    ],
)
def test_other_words_may_have_the_notebooks_values(
    magics: DistMagics, seen: dict[str, Any], line: str, name: str, value: object
) -> None:
    assert run_cell(seen, magics, f"%dist {line}")[name] == value


def test_a_functions_own_names_are_found_in_it(magics: DistMagics, seen: dict[str, Any]) -> None:
    options = run_cell(seen, magics, "def f(n):\n    %dist check f'{n}' -r $n -g {a}\nf(7)")
    assert (options["expr"], options["ranks"], options["group"]) == (["f'{n}'"], "7", "1")


def test_a_cells_options_may_have_the_notebooks_values(magics: DistMagics, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Any] = []
    monkeypatch.setattr(
        magics, "_cell", lambda line, _, expand: parsed.append(cell_parser().parse(line.split(), expand))
    )
    shell = magics.session.namespace["get_ipython"]()
    shell.register_magics(magics)
    shell.push({"seconds": 20, "a": 1})
    shell.run_cell("%%dist -t {seconds} -p f'{a}' -r $a\nx").raise_error()
    (options,) = parsed
    assert (options.timeout, options.pull, options.ranks) == (20.0, "f'{a}'", "1")


@pytest.mark.parametrize(
    ("line", "expression"),
    [("'a' + 'b'", "'a' + 'b'"), ("'a + b'", "a + b"), ("a  + b", "a + b"), ("x == 'a  b' -r 0", "x == 'a  b'")],
)
def test_quotes_inside_an_expression_are_kept(line: str, expression: str) -> None:
    options = VERBS["check"].parser().parse(split_words(line))
    assert join_expression(options.expr) == expression


def test_what_a_line_says_can_be_sent_to_ranks() -> None:
    """Messages are encoded by msgspec, which takes no subclass of str."""
    for verb, line in (("check", "x"), ("show", "'x'"), ("run", "a.py b -c"), ("start", "--name 'a b'")):
        (found,) = structs.replace(VERBS[verb], function=lambda _, o: [vars(o)])(session()[0], split_words(line))
        json.encode(found)
