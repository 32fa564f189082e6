"""A drill as text and HTML: a table of the faults for each backend, and a line for each that did not hold."""

import html
from collections.abc import Sequence

from jdist.client.drill import Drill, Trial
from jdist.core.quantities import format_count, format_duration
from jdist.core.table import Table

_HEADS = ("fault", "named", "free", "right sum", "names kept")
_MARKS = {"held": "✓", "failed": "✗", "not tried": "·"}


def drill_bundle(drills: Sequence[Drill]) -> dict[str, str]:
    """``{"text/plain", "text/html"}`` of the drills."""
    parts = [part for drill in drills for part in _drill(drill)]
    return {
        "text/plain": "\n\n".join(part["text/plain"] for part in parts),
        "text/html": "".join(part["text/html"] for part in parts),
    }


def _drill(drill: Drill) -> list[dict[str, str]]:
    where = f"backend {drill.backend}" if drill.backend else "the cluster's own backend"
    if not drill.world_size:
        return [_lines([f"✗ {where}: {drill.trouble}"])]
    head = f"{where}: {format_count(drill.world_size, 'rank')} on {format_count(len(drill.hosts), 'node')}"
    head += f" ({', '.join(dict.fromkeys(drill.hosts))}), by launcher {drill.launcher}"
    shown = Table.of(_HEADS, map(_row, drill.trials)).bundle()
    return [_lines([f"{head}; started in {format_duration(drill.start_seconds)}"]), shown, _lines(_conclusion(drill))]


def _row(trial: Trial) -> list[str]:
    name = f"{_MARKS[trial.result]} {trial.fault}"
    if trial.result == "not tried":
        return [name, "not tried"]
    times = (trial.verdict_seconds, trial.free_seconds, trial.sum_seconds)
    kept = f"{trial.kept} of {trial.expected}" if trial.expected else ""
    return [name, *("" if t is None else f"{t:.2f} s" for t in times), kept]


def _conclusion(drill: Drill) -> list[str]:
    lines = []
    for trial in drill.trials:
        if trial.result == "failed":
            lines.append(f"✗ {trial.fault}: {trial.reason}")
        elif trial.reason or trial.note:
            lines.append(f"· {trial.fault}: {trial.reason or trial.note}")
    tried = [trial for trial in drill.trials if trial.result != "not tried"]
    failed = sum(trial.result == "failed" for trial in tried)
    if failed:
        lines.append(f"{failed} of {format_count(len(tried), 'fault')} did not end as jdist promises")
    elif tried:
        lines.append(f"every one of {format_count(len(tried), 'fault')} ended as jdist promises")
    return lines


def _lines(lines: Sequence[str]) -> dict[str, str]:
    return {"text/plain": "\n".join(lines), "text/html": "".join(f"<div>{html.escape(line)}</div>" for line in lines)}
