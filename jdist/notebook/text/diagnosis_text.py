"""A diagnosis as text and HTML: a table by node, a table of the network paths between them, and the findings.

A drill as text and HTML: a table of the faults for each backend, and a line for each that did not hold. Both as JSON.
"""

import datetime as dt
import html
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jdist.client.doctor.findings import Diagnosis, Examination
from jdist.client.drill import Drill, Trial
from jdist.core import __version__
from jdist.core.messages.nodes import UNLIMITED, NetworkPath, NodeReport
from jdist.core.quantities import format_count, format_duration, format_memory
from jdist.core.ranks import RankSet, ranks_by
from jdist.core.table import Table

_COLUMNS = 6  # Up to so many nodes stand side by side; of more, each line says which nodes have which value.
_MARKS = {"breaks": "✗", "may break": "⚠", "note": "·"}


def diagnosis_bundle(diagnosis: Diagnosis) -> dict[str, str]:
    """``{"text/plain", "text/html"}`` of the diagnosis."""
    lines = _findings(diagnosis)
    found = {"text/plain": "\n".join(lines), "text/html": "".join(f"<div>{html.escape(t)}</div>" for t in lines)}
    parts = [*_tables(diagnosis.examination), found]
    return {
        "text/plain": "\n\n".join(p["text/plain"] for p in parts),
        "text/html": "".join(p["text/html"] for p in parts),
    }


def findings_first(diagnosis: Diagnosis) -> str:
    """The diagnosis as text that is read from its beginning: the findings, worst first, then the tables."""
    return "\n\n".join(["\n".join(_findings(diagnosis)), *(p["text/plain"] for p in _tables(diagnosis.examination))])


def _findings(diagnosis: Diagnosis) -> list[str]:
    return [f"{_MARKS[f.severity]} {f.severity}: {f.text}" for f in diagnosis.findings] or [f"✓ {diagnosis}"]


def _tables(seen: Examination) -> list[dict[str, str]]:
    return [_nodes(seen)] * bool(seen.nodes) + [_paths(seen)] * bool(seen.paths)


# ---------------------------------------------------------------- nodes


def _nodes(seen: Examination) -> dict[str, str]:
    rows = {what: {n: of(r) for n, r in seen.nodes.items()} for what, of in _ROWS.items()}
    clocks = {n: f"{c.offset * 1e3:+,.1f} ms ± {c.error * 1e3:,.1f}" for n, c in seen.clocks.items()}
    rows["clock"] = {n: clocks.get(n, "") for n in seen.nodes}
    rows = {what: cells for what, cells in rows.items() if any(cells.values())}
    if len(seen.nodes) <= _COLUMNS:
        heads = ["", *(f"node {n}" for n in seen.nodes)]
        return Table.of(heads, ((what, *cells.values()) for what, cells in rows.items())).bundle()
    return Table.of(("", "nodes"), ((what, _collapsed(cells)) for what, cells in rows.items())).bundle()


def _collapsed(cells: Mapping[int, str]) -> str:
    ordered = sorted(ranks_by(cells.items()).items(), key=lambda item: -len(item[1]))
    shown = [f"{RankSet(nodes)}: {cell or 'none'}" for cell, nodes in ordered[:_COLUMNS]]
    left = sum(len(nodes) for _, nodes in ordered[_COLUMNS:])
    return "\n".join(shown + [f"{left} others"] * bool(left))


def _gpus(report: NodeReport) -> str:
    models = Counter(f"{gpu.name} {format_memory(gpu.memory)}" for gpu in report.gpus)
    named = ", ".join(f"{count} x {kind}" for kind, count in models.items())
    return named or (str(report.gpu_count) if report.gpu_count else "none")


def _disk(what: str) -> Callable[[NodeReport], str]:
    def free(report: NodeReport) -> str:
        found = [d for d in report.disks if d.what == what]
        return f"{format_memory(found[0].free)} of {format_memory(found[0].total)}" if found else "missing"

    return free


def _limit(limit: int, show: Callable[[int], str] = str) -> str:
    return "unlimited" if limit == UNLIMITED else show(limit)


_ROWS: dict[str, Callable[[NodeReport], str]] = {
    "host": lambda r: r.hostname,
    "address": lambda r: r.address,
    "interface": lambda r: r.chosen_interface + " (set by the user)" * r.is_users_choice,
    "Python": lambda r: r.python,
    "torch": lambda r: r.torch or "none",
    "jdist": lambda r: r.jdist,
    "CUDA (in torch)": lambda r: r.facts.cuda or "CPU build" if r.facts is not None else "",
    "NCCL": lambda r: r.facts.nccl if r.facts is not None else "",
    "driver": lambda r: r.driver,
    "GPUs": _gpus,
    "RDMA": lambda r: ", ".join(r.rdma),
    "CPUs": lambda r: str(r.cpus),
    "memory": lambda r: format_memory(r.memory),
    "/dev/shm free": _disk("/dev/shm"),
    "disk free, working directory": _disk("working directory"),
    "disk free, temporary files": _disk("temporary files"),
    "ulimit -n (files)": lambda r: _limit(r.limits.nofile),
    "ulimit -u (processes)": lambda r: _limit(r.limits.nproc),
    "ulimit -l (locked memory)": lambda r: _limit(r.limits.memlock, format_memory),
}


# ---------------------------------------------------------------- network paths


def _paths(seen: Examination) -> dict[str, str]:
    nodes, paths = list(seen.nodes), seen.paths
    if len(nodes) <= _COLUMNS:
        rows = [[f"node {a}", *("" if a == b else _describe_path(paths.get((a, b))) for b in nodes)] for a in nodes]
        return Table.of(("from \\ to", *(f"node {n}" for n in nodes)), rows).bundle()
    good = [p for p in paths.values() if not p.trouble]
    times = sorted(p.round_trip for p in good)
    text = f"{len(good)} of {len(paths)} network paths between nodes are open"
    text += f"; round trip {times[0] * 1e3:.2f} to {times[-1] * 1e3:.2f} ms" if times else ""
    return {"text/plain": text, "text/html": f"<div>{html.escape(text)}</div>"}


def _describe_path(path: NetworkPath | None) -> str:
    if path is None:
        return "?"
    if path.trouble:
        return {"timeout": "blocked (dropped)", "refused": "blocked (refused)"}.get(path.kind, path.kind)
    name = "" if not path.name_trouble else ", name unknown"
    return f"{path.round_trip * 1e3:.2f} ms{name}"


_HEADS = ("fault", "named", "free", "right sum", "names kept")
_DRILL_MARKS = {"held": "✓", "failed": "✗", "not tried": "·"}


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
    name = f"{_DRILL_MARKS[trial.result]} {trial.fault}"
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


# ---------------------------------------------------------------- JSON

_FORMAT = 1


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """The whole report of an examination."""
    seen = msgspec.structs.asdict(diagnosis.examination)
    seen["paths"] = [{"from": a, "to": b, "path": path} for (a, b), path in diagnosis.examination.paths.items()]
    return _document({"is_well": diagnosis.is_well, "findings": diagnosis.findings, **seen})


def drill_json(drills: Sequence[Drill]) -> str:
    """Without drills, as at the beginning, it says that nothing held."""
    held = bool(drills) and all(drill.held for drill in drills)
    return _document({"held": held, "drills": [msgspec.to_builtins(drill) | {"held": drill.held} for drill in drills]})


def _document(content: Mapping[str, Any]) -> str:
    head = {
        "format": _FORMAT,
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "versions": {"jdist": __version__, "python": platform.python_version(), "system": platform.platform()},
    }
    return msgspec.json.format(msgspec.json.encode(head | dict(content))).decode()
