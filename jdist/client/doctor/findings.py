"""Findings: what an examination's facts mean for who wants to train on these nodes, worst first. Pure.

Each check looks at one thing, and says nothing where the facts are fine or not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from jdist.client.doctor.diagnosis import SEVERITIES, Examination, Finding
from jdist.client.doctor.network_paths import ways
from jdist.core.messages.nodes import UNLIMITED, NodeReport
from jdist.core.quantities import format_memory
from jdist.core.ranks import RankSet

_CLOCKS_APART = 0.5
"""Seconds. Below that, only timestamps that are compared by hand would show it; the trace corrects its own."""
_SMALL_SHM = 1 << 30
_NO_SHM = 128 << 20
_LITTLE_DISK = 1 << 30
_FILES = (256, 16)
"""File descriptors that a rank wants: so many, and so many for each rank of the world."""
_THREADS = (256, 64)
"""Processes and threads that a user wants on a node: so many, and so many for each of its CPUs."""
_GIB = 1 << 30


def findings(seen: Examination) -> tuple[Finding, ...]:
    """All of them, the worst first."""
    found = [finding for check in _CHECKS for finding in check(seen)]
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))


def _absent(seen: Examination) -> Iterator[Finding]:
    for node, why in sorted(seen.absent.items()):
        yield Finding("breaks", f"{seen.name(node)} could not be examined: {why}", (node,))
    if seen.trouble:
        yield Finding("breaks", f"the world could not be formed: {seen.trouble}")


def _versions(seen: Examination) -> Iterator[Finding]:
    python = _values(seen, lambda r: ".".join(r.python.split(".")[:2]))
    yield from _differing(
        "breaks", "Python", python, "values and functions cannot travel between them, and jdist refuses such nodes"
    )
    yield from _differing(
        "breaks",
        "torch",
        _values(seen, lambda r: r.torch),
        "their process groups and saved states may not agree, and jdist refuses such nodes",
    )
    yield from _differing("breaks", "jdist", _values(seen, lambda r: r.jdist), "jdist refuses such nodes")
    for node in (n for n, r in seen.nodes.items() if not r.torch):
        yield Finding("breaks", f"{seen.name(node)} has no torch: no rank can start there; pip install torch", (node,))


def _cuda(seen: Examination) -> Iterator[Finding]:
    for node, report in sorted(seen.nodes.items()):
        facts = report.facts
        if facts is None or not report.gpu_count:
            continue
        if not facts.cuda:
            why = "its ranks will compute on the CPU; install a build of torch for CUDA"
            text = f"{seen.name(node)} has {_gpus(report.gpu_count)}, but its torch {facts.version} is a CPU build"
            yield Finding("may break", f"{text}: {why}", (node,))
        elif facts.trouble or not facts.gpus:
            what = f"torch {facts.version} for CUDA {facts.cuda}, driver {report.driver or 'unknown'}"
            why = facts.trouble or "it finds none"
            yield Finding("breaks", f"{seen.name(node)}: torch cannot use its GPUs ({what}): {why}", (node,))
    builds = {n: r.facts for n, r in seen.nodes.items() if r.facts is not None and r.facts.cuda}
    nccl = {n: f.nccl for n, f in builds.items() if f.nccl}
    yield from _differing("breaks", "NCCL", nccl, "nccl groups across them fail or hang; --backend gloo does without")
    cuda = {n: f.cuda for n, f in builds.items()}
    yield from _differing("may break", "CUDA (in torch)", cuda, "compiled extensions of one do not load on the other")
    drivers = {n: r.driver for n, r in seen.nodes.items() if r.driver}
    yield from _differing("note", "NVIDIA driver", drivers, "code for a newer CUDA may run on some only")


def _hardware(seen: Examination) -> Iterator[Finding]:
    counts = {n: r.gpu_count for n, r in seen.nodes.items()}
    without = [n for n, count in counts.items() if not count]
    if any(counts.values()) and without:
        there = RankSet(n for n, count in counts.items() if count)
        text = (
            f"there are GPUs on node{_s(there)} {there} and none on node{_s(without)} {RankSet(without)}: nccl needs "
            "one for every rank and is refused; --backend gloo runs on all, or leave out the nodes without"
        )
        yield Finding("breaks" if "nccl" in seen.backend else "may break", text, tuple(without))
    models = {n: ", ".join(dict.fromkeys(g.name for g in r.gpus)) for n, r in seen.nodes.items() if r.gpus}
    yield from _differing("may break", "GPUs", models, "each step takes as long as on the slowest")
    if len(set(models.values())) == 1:
        memory = {n: f"{min(g.memory for g in r.gpus) / _GIB:.0f} GiB" for n, r in seen.nodes.items() if r.gpus}
        yield from _differing("may break", "GPU memory", memory, "the smallest runs out first")


def _clocks(seen: Examination) -> Iterator[Finding]:
    if not seen.clocks:
        return
    ahead = max(seen.clocks, key=lambda n: seen.clocks[n].offset)
    behind = min(seen.clocks, key=lambda n: seen.clocks[n].offset)
    apart = seen.clocks[ahead].offset - seen.clocks[behind].offset
    if apart - seen.clocks[ahead].error - seen.clocks[behind].error > _CLOCKS_APART:
        what = f"the clock of {seen.name(ahead)} is {apart:.1f} s ahead of that of {seen.name(behind)}"
        text = f"{what}: logs and files' times cannot be compared, and tokens may be expired early; run chrony or ntpd"
        yield Finding("may break", text, (ahead, behind))
        return
    far = max(seen.clocks, key=lambda n: abs(seen.clocks[n].offset))
    offset = seen.clocks[far].offset
    if abs(offset) - seen.clocks[far].error > _CLOCKS_APART:
        side = "ahead of" if offset > 0 else "behind"
        text = f"the nodes' clocks are {abs(offset):.1f} s {side} this machine's: files' times cannot be compared"
        yield Finding("note", text, tuple(sorted(seen.clocks)))


def _room(seen: Examination) -> Iterator[Finding]:
    small: dict[int, str] = {}
    for node, report in sorted(seen.nodes.items()):
        for disk in report.disks:
            if disk.what != "/dev/shm":
                if disk.free < _LITTLE_DISK:
                    left = f"{format_memory(disk.free)} free for the {disk.what} ({disk.path})"
                    text = f"{seen.name(node)} has {left}: logs, checkpoints and compiled kernels will not fit"
                    yield Finding("may break", text, (node,))
            elif disk.free < _NO_SHM:
                room = f"{format_memory(disk.free)} of {format_memory(disk.total)}"
                text = (
                    f"{seen.name(node)} has {room} free in /dev/shm: pushes, pulls, "
                    "NCCL and DataLoader workers need it, and a process that finds it full is killed (bus error); "
                    "in a container: --shm-size=8g or --ipc=host"
                )
                yield Finding("breaks" if disk.free < _NO_SHM // 8 else "may break", text, (node,))
            elif disk.total < _SMALL_SHM:
                small[node] = format_memory(disk.total)
        if not any(d.what == "/dev/shm" for d in report.disks):
            text = f"{seen.name(node)} has no /dev/shm: values cannot pass between its ranks and jdist"
            yield Finding("breaks", text, (node,))
    for size, nodes in _grouped(small).items():
        text = f"/dev/shm is only {size} on node{_s(nodes)} {RankSet(nodes)}: large values may not fit; --shm-size=8g"
        yield Finding("may break", text, tuple(nodes))


def _limits(seen: Examination) -> Iterator[Finding]:
    files = _FILES[0] + _FILES[1] * seen.world_size
    few = {n: r.limits.nofile for n, r in seen.nodes.items() if _is_below(r.limits.nofile, files)}
    for limit, nodes in _grouped(few).items():
        where = f"node{_s(nodes)} {RankSet(nodes)}"
        effect = f"in a world of {seen.world_size} a rank and its data loaders end with 'Too many open files'"
        text = f"ulimit -n is {limit} on {where}: {effect}; raise it to {max(4096, 2 * files)}"
        yield Finding("may break", text, nodes)
    for node, report in sorted(seen.nodes.items()):
        threads = _THREADS[0] + _THREADS[1] * report.cpus
        if _is_below(report.limits.nproc, threads):
            text = f"ulimit -u is {report.limits.nproc} on {seen.name(node)}: threads or processes may not start"
            yield Finding("may break", f"{text} ('Resource temporarily unavailable'); raise it to {threads}", (node,))
        if report.rdma and report.limits.memlock != UNLIMITED:
            locked = (
                f"ulimit -l is {format_memory(report.limits.memlock)} on {seen.name(node)}, which has {report.rdma[0]}"
            )
            text = f"{locked}: NCCL cannot register memory with it, and fails; set it to unlimited"
            yield Finding("may break", text, (node,))


def _interfaces(seen: Examination) -> Iterator[Finding]:
    for node, report in sorted(seen.nodes.items()):
        names = [w.lstrip("^=").partition(":")[0] for w in report.chosen_interface.split(",")]
        if not report.is_users_choice or report.chosen_interface.startswith("^"):
            continue
        if not any(here.startswith(name) for name in names for here in report.interfaces):
            there = ", ".join(report.interfaces)
            text = f"{seen.name(node)}: {report.chosen_interface} is set for gloo or NCCL, and there is only {there}"
            yield Finding("breaks", f"{text}: the world cannot be formed; unset it, jdist finds the right one", (node,))


def _trouble(seen: Examination) -> Iterator[Finding]:
    for node, report in sorted(seen.nodes.items()):
        for text in report.trouble:
            yield Finding("may break", f"{seen.name(node)}: {text}", (node,))


def _differing(severity: str, what: str, values: Mapping[int, str], effect: str) -> Iterator[Finding]:
    """One finding if the nodes do not all have the same; the few are the ones to look at."""
    groups = _grouped(values)
    if len(groups) < 2:
        return
    parts = [f"{value or 'none'} on node{_s(nodes)} {RankSet(nodes)}" for value, nodes in groups.items()]
    few = tuple(n for nodes in list(groups.values())[1:] for n in nodes)
    yield Finding(severity, f"{what} differs: {'; '.join(parts)}: {effect}", few)  # type: ignore[arg-type]


def _grouped(values: Mapping[int, object]) -> dict[object, tuple[int, ...]]:
    """``{value: nodes}``, what most have first."""
    groups: dict[object, list[int]] = {}
    for node, value in sorted(values.items()):
        groups.setdefault(value, []).append(node)
    return {v: tuple(n) for v, n in sorted(groups.items(), key=lambda item: -len(item[1]))}


def _values(seen: Examination, of: Callable[[NodeReport], str]) -> dict[int, str]:
    return {n: of(r) for n, r in seen.nodes.items() if of(r)}


def _is_below(limit: int, wanted: int) -> bool:
    return limit != UNLIMITED and limit < wanted


def _gpus(count: int) -> str:
    return "a GPU" if count == 1 else f"{count} GPUs"


def _s(nodes: Iterable[int]) -> str:
    return "s" * (len(list(nodes)) > 1)


_CHECKS: tuple[Callable[[Examination], Iterable[Finding]], ...] = (
    _absent,
    ways,
    _versions,
    _cuda,
    _hardware,
    _interfaces,
    _room,
    _limits,
    _clocks,
    _trouble,
)
