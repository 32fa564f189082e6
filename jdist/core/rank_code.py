"""Rank code: the code strings with which jdist calls its own functions on ranks. No other module writes such strings.

The functions are named as in :mod:`jdist.worker.entry_points`, which knows where they are.
"""

from collections.abc import Sequence

ENTRY_POINTS = (
    *("run_script", "full_values", "broadcast", "restore", "call_on_reform", "save", "load", "read_manifest"),
    *("cause_fault", "delete_names", "take_events"),
)
_MODULE = "__import__('jdist.worker.entry_points', fromlist=['x'])"
_IN_JOB = {False: "", True: ", in_job=True"}
FULL_VALUES = "__jdist_full__"  # The name to which :func:`full_values` binds what it found.


def run_script(path: str, args: Sequence[str], *, in_job: bool = False) -> str:
    """Run the script at ``path`` as ``__main__``; its names are bound in the session.

    ``in_job``: it is the only code that the cluster was started for.
    """
    return f"{_MODULE}.run_script({path!r}, {list(args)!r}, globals(){_IN_JOB[in_job]})"


def run_module(name: str, args: Sequence[str], directory: str, *, in_job: bool = False) -> str:
    """Run the module called ``name`` as ``__main__``, as ``python -m`` does in ``directory``."""
    return f"{_MODULE}.run_script({name!r}, {list(args)!r}, globals(), {directory!r}{_IN_JOB[in_job]})"


def is_script(code: str) -> bool:
    """Whether :func:`run_script` or :func:`run_module` wrote this cell."""
    return code.startswith(f"{_MODULE}.run_script(")


def full_values(names: Sequence[str]) -> str:
    """Bind ``{name: value}`` with every DTensor assembled; a collective."""
    return f"{FULL_VALUES} = {_MODULE}.full_values({tuple(names)!r}, globals())"


def delete_names(names: Sequence[str]) -> str:
    """Delete those of the names that the rank has; its value is how many that were."""
    return f"{_MODULE}.delete_names({tuple(names)!r}, globals())"


def broadcast(name: str, source: int) -> str:
    """Bind rank ``source``'s value of ``name`` on every rank; a collective."""
    return f"{_MODULE}.broadcast({name!r}, {source}, globals())"


def restore(names: Sequence[str], source: int, target: int) -> str:
    """Copy the values of ``names`` from rank ``source`` to rank ``target``."""
    return f"{_MODULE}.restore({tuple(names)!r}, {source}, {target}, globals())"


def save(directory: str, names: Sequence[str], save_id: str, keep: int) -> str:
    """Save ``names`` (none: all) into a new folder in ``directory``, of which ``keep`` are kept; a collective.

    The cell ends when the values have been copied; they are written in the background (see core/messages/saving).
    """
    return f"{_MODULE}.save({directory!r}, {tuple(names)!r}, {save_id!r}, {keep}, globals())"


def load(directory: str, names: Sequence[str], sources: dict[int, int]) -> str:
    """Load ``names`` (none: all) of the newest save in ``directory``; a collective.

    ``sources`` is ``{rank: saved rank}`` where a rank is to take another rank's own values than jdist would choose.
    """
    return f"{_MODULE}.load({directory!r}, {tuple(names)!r}, {sources!r}, globals())"


def absolute(directory: str) -> str:
    """A directory as a cell there would find it."""
    return f"__import__('pathlib').Path({directory!r}).expanduser().absolute().as_posix()"


def read_manifest(directory: str) -> str:
    """The manifest of the newest save in ``directory``."""
    return f"{_MODULE}.read_manifest({directory!r})"


def take_events() -> str:
    """Take the events of widgets that wait on this rank."""
    return f"{_MODULE}.take_events()"


def call_on_reform(generation: int) -> str:
    """Call the functions that cells registered with ``jdist.on_reform``."""
    return f"{_MODULE}.call_on_reform({generation})"


def cause_fault(kind: str, *arguments: float) -> str:
    """Cause a fault on this rank, for a drill: a function of :mod:`jdist.worker.faults`, by its name."""
    return f"{_MODULE}.cause_fault({', '.join(map(repr, (kind, *arguments)))})"
