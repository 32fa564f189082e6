"""The profile of a cell: shown when the cell has run, or by the verb."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from jdist.client.run import CellRun
from jdist.core.errors import UsageError
from jdist.core.profile import ProfileOptions, profile_options
from jdist.core.quantities import parse_count
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.verbs.registry import option, verb

if TYPE_CHECKING:
    from jdist.client.measure.profile import Profile


@verb(
    "profile",
    option("--run", type=parse_count, default=0, metavar="N", help="number of a run; default: the last profiled one"),
    option("--save", metavar="FILE", help="write one Chrome trace for all ranks; FILE.json.gz is compressed"),
)
def profile(s: Session, o: Namespace) -> None:
    """show who waited for whom in the last cell run with `%%dist --profile`: profile [--run N] [--save FILE]"""
    _show(s, s.cluster.read_profile(o.run), o.save)


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
