"""Verbs that diagnose: the doctor examines nodes and the network between them, the trace shows a run's collectives.

The metrics of a run: what its ranks have logged, shown, or written to files.

The profile of a cell: shown when the cell has run, or by the verb.
"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jdist.client import find
from jdist.client.doctor.examine import examine_beforehand
from jdist.client.doctor.findings import Diagnosis
from jdist.client.drill import options_like, run_drills
from jdist.client.measure.columns import MIME, columns
from jdist.client.run import CellRun
from jdist.client.threads import bridge
from jdist.core.errors import UsageError
from jdist.core.profile import ProfileOptions, profile_options
from jdist.core.quantities import parse_count
from jdist.notebook.options import add_start_options, at_dashes, names_a_start, start_options
from jdist.notebook.output.screen import Replaceable, plain
from jdist.notebook.session import Session
from jdist.notebook.text.diagnosis_text import diagnosis_bundle, diagnosis_json, drill_bundle, drill_json
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.verbs.registry import VERBS, Words, option, verb

if TYPE_CHECKING:
    from jdist.client.measure.profile import Profile


_PRINT = "-"
_MOST_CALLS = 20_000  # A notebook keeps the trace beside its picture up to so many calls, of some 20 bytes each.


def is_of_running(words: Words) -> bool:
    """Whether a running cluster is to be examined: no other nodes are named, and it is no drill."""
    words, rest = at_dashes(words)
    o = VERBS["doctor"].parser().parse(words)
    o.rest = rest
    return not (o.drill or names_a_start(o))


def _finds_cluster(words: Words) -> bool:
    return is_of_running(words) and bool(find.connections())


@verb(
    "doctor",
    add_start_options,
    option("--drill", action="store_true", help="cause faults on a temporary cluster, and check that each is handled"),
    option(
        "--json", metavar="FILE", nargs="?", const=_PRINT, help="print the report as JSON, or write it to this file"
    ),
    attaches=_finds_cluster,
    split=at_dashes,
)
def doctor(s: Session, o: Namespace) -> bool | None:
    """check nodes and the network between them; with options of start, check the nodes that it would use

    Without a cluster, or with options of start, it starts a cluster with one rank per node, examines it, and ends it.
    With --drill, it starts a temporary cluster, with the options of start or like the attached one. There it lets ranks
    hang, fail and be killed, and kills agents and the controller. Each time it checks that the fault is named, that the
    ranks are freed, that an all_reduce gives the right result again, and that variables are kept. --backend gloo,nccl
    runs the drill with both.
    """
    if o.drill:
        return _drill(s, o)
    spot = Replaceable(s.screen)

    def on_step(text: str) -> None:
        if spot.is_live:
            spot.show(plain(text))

    diagnosis: Diagnosis
    if s.current is not None and not names_a_start(o):
        diagnosis = s.cluster.doctor(on_step=on_step)
    else:
        options = {"on_step": on_step, "kind": s.kind, **start_options(o)}
        diagnosis = bridge().call(examine_beforehand(**options))
    if o.json != _PRINT:
        spot.show(diagnosis_bundle(diagnosis))
    _report(s, o.json, diagnosis_json(diagnosis))
    return diagnosis.is_well if s.kind == "command line" else None


def _drill(s: Session, o: Namespace) -> bool | None:
    names = o.backend or ""
    backends = [name for name in dict.fromkeys([names] if ":" in names else names.split(",")) if name]
    o.backend = None
    is_like_current = s.current is not None and not names_a_start(o)
    options = options_like(s.cluster.asynchronous.link) if is_like_current else start_options(o)
    own = options.pop("backend")
    if o.json not in (None, _PRINT):
        _write(o.json, drill_json(()))  # now rather than after a minute, it is known whether it can be written
    spot = Replaceable(s.screen)

    def on_step(text: str) -> None:
        if spot.is_live:
            spot.show(plain(text))
        elif not s.screen.is_live:
            print(text, file=sys.stderr, flush=True)

    drills = bridge().call(run_drills(backends or [own], on_step, kind=s.kind, **options))
    if o.json != _PRINT:
        spot.show(drill_bundle(drills))
    _report(s, o.json, drill_json(drills))
    return all(drill.held for drill in drills) if s.kind == "command line" else None


def _report(s: Session, file: str | None, text: str) -> None:
    """Print it, or write it to the file, if there is one. Raises UsageError."""
    if file == _PRINT:
        print(text)
    elif file is not None:
        _write(file, text)
        s.echo(f"written to {file}")


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(f"{text}\n")
    except OSError as e:
        raise UsageError(f"the report cannot be written to {file}: {e.strerror}") from e


@verb(
    "trace",
    option("--run", type=parse_count, default=0, metavar="N", help="number of a run; default: the last one"),
    option("--save", metavar="FILE", help="write it as a Chrome trace, which ui.perfetto.dev opens"),
)
def trace(s: Session, o: Namespace) -> None:
    """draw the last run's collectives as a timeline, with which rank waited for which: trace [--run N] [--save FILE]"""
    found = s.cluster.trace(o.run)
    shown: dict[str, Any] = {"text/plain": repr(found), "text/html": found._repr_html_()}
    if sum(map(len, found.calls.values())) <= _MOST_CALLS:
        shown[MIME] = columns(found.report, s.cluster.name, s.cluster.id)
    s.screen.show(shown)
    if o.save:
        s.echo(f"written to {found.save(o.save)}: ui.perfetto.dev opens it")


@verb(
    "metrics",
    option("--run", type=parse_count, default=0, metavar="N", help="number of a run; default: the last that logged"),
    option("--csv", metavar="FILE", help="write the points as a table: step, rank, name, value, time"),
    attaches=None,
)
def metrics(s: Session, o: Namespace) -> None:
    """show what the ranks logged with `jdist.log` in a cell: metrics [--run N] [--csv FILE]"""
    found = s.cluster.metrics(o.run)
    if o.csv:
        s.echo(f"{len(found):,} points written to {found.to_csv(o.csv)}")
    else:
        s.screen.show(found.bundle())


@verb(
    "profile",
    option("--run", type=parse_count, default=0, metavar="N", help="number of a run; default: the last profiled one"),
    option("--save", metavar="FILE", help="write one Chrome trace for all ranks; FILE.json.gz is compressed"),
)
def profile(s: Session, o: Namespace) -> None:
    """show who waited for whom in the last cell run with `%%dist --profile`: profile [--run N] [--save FILE]"""
    try:
        found = s.cluster.read_profile(o.run)
    except UsageError as e:
        e.message += "; a cell that begins with %%dist --profile records one"
        raise
    _show(s, found, o.save)


def options_of(o: Namespace, ranks: int) -> ProfileOptions | None:
    """The options of a profile of so many ranks, if the parsed options of a cell ask for one. Raises UsageError."""
    if o.profile is None:
        if o.profile_steps or o.profile_activities:
            raise UsageError("--profile-steps and --profile-activities require --profile")
        return None
    return profile_options(ranks, activities=o.profile_activities or (), **(o.profile_steps or {}))


def show_profile(s: Session, run: CellRun, file: str, *, is_over: bool) -> None:
    """Show the profile of a run, also of one that failed, and write it to ``file`` unless that is empty."""
    if not is_over:
        s.echo(f"{typed('profile')} will show the profile when the run is over")
        return
    try:
        found = s.cluster.read_profile(run)
    except UsageError as e:
        if not any(outcome.error for outcome in run.outcomes.values()):  # otherwise its own error says enough
            s.echo(str(e))
        return
    _show(s, found, file)


def _show(s: Session, found: "Profile", file: str | None) -> None:
    shown: dict[str, Any] = found._repr_mimebundle_()
    s.screen.show(shown)
    if file:
        s.echo(f"written to {found.save(file)}; open it at ui.perfetto.dev")
