"""Findings: the facts that an examination of nodes has collected, and what they mean for training there. Pure.

A check is a function decorated with :func:`check`, for the whole examination, or :func:`check_node`, for each node. It
yields nothing where the facts are fine or unknown.
"""

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

from jdist.client.measure.timeline import Clock
from jdist.core.messages.nodes import UNLIMITED, NetworkPath, NodeReport
from jdist.core.quantities import format_count, format_memory
from jdist.core.ranks import RankSet, ranks_by
from jdist.core.settings import ADVICE

Severity = Literal["breaks", "may break", "note"]
SEVERITIES: tuple[Severity, ...] = ("breaks", "may break", "note")  # Worst first.


class Finding(Struct, frozen=True):
    """A plain sentence: a difference or a lack, and its effect."""

    severity: Severity
    text: str
    nodes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}"


class Examination(Struct, frozen=True):
    """The collected facts, by node; ``paths`` by ``(from, to)``."""

    nodes: Mapping[int, NodeReport]
    clocks: Mapping[int, Clock]
    paths: Mapping[tuple[int, int], NetworkPath]
    absent: Mapping[int, str]  # Nodes that could not be examined, and why.
    world_size: int = 0
    backend: str = ""
    trouble: str = ""  # Why the world could not be formed; "" if it was formed, or was not to be.

    def name(self, node: int) -> str:
        """The node as in "node 1 (b)"."""
        report = self.nodes.get(node)
        return f"node {node} ({report.hostname})" if report is not None else f"node {node}"


class Diagnosis(Struct, frozen=True):
    """The answer of ``doctor``: ``findings``, worst first, and the ``examination`` that they come from."""

    examination: Examination
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether no finding breaks anything."""
        return all(f.severity != "breaks" for f in self.findings)

    def __str__(self) -> str:
        if self.findings:
            return "\n".join(map(str, self.findings))
        return f"nothing found: {format_count(len(self.examination.nodes), 'node')} examined"


def nodes_text(nodes: Iterable[int]) -> str:
    """The nodes as in "node 2", "nodes 0-3"."""
    found = RankSet(nodes)
    return f"node{'s' * (len(found) > 1)} {found}"


# ---------------------------------------------------------------- checks

_CLOCKS_APART = 0.5  # Seconds; less matters only to timestamps compared by hand, as traces correct their own.
_SMALL_SHM = 1 << 30
_NO_SHM = 128 << 20
_LITTLE_DISK = 1 << 30
_FILES = (256, 16)  # File descriptors that a rank needs: so many, and so many for each rank of the world.
_THREADS = (256, 64)  # Processes and threads that a user needs on a node: so many, and so many for each of its CPUs.
_GIB = 1 << 30
_FAR = 0.01  # Seconds of round trip from which the network noticeably slows every collective.

Check = Callable[[Examination], Iterable[Finding]]
NodeCheck = Callable[[str, NodeReport], Iterable[tuple[Severity, str]]]  # Called with "node 1 (b)" and its report.

_checks: list[Check] = []


def check(function: Check) -> Check:
    """Register a check of the whole examination."""
    _checks.append(function)
    return function


def check_node(function: NodeCheck) -> NodeCheck:
    """Register a check of single nodes."""

    @check
    def each(seen: Examination) -> Iterator[Finding]:
        for node, report in sorted(seen.nodes.items()):
            for severity, text in function(seen.name(node), report):
                yield Finding(severity, text, (node,))

    return function


def diagnose(seen: Examination) -> Diagnosis:
    """The examination with the findings of all checks, the worst first."""
    found = (finding for each in _checks for finding in each(seen))
    return Diagnosis(seen, tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity))))


@check
def _absent(seen: Examination) -> Iterator[Finding]:
    for node, why in sorted(seen.absent.items()):
        yield Finding("breaks", f"{seen.name(node)} could not be examined: {why}", (node,))
    if seen.trouble:
        yield Finding("breaks", f"the world could not be formed: {seen.trouble}")


@check
def _blocked_paths(seen: Examination) -> Iterator[Finding]:
    """Blocked ports: one finding for a node that no other reaches or that reaches no other, else one for each pair."""
    left = {pair: path for pair, path in seen.paths.items() if path.trouble}
    while left:
        counts = Counter((pair[end], end) for pair in left for end in (1, 0))  # paths to each node (1) or from it (0)
        (node, end), count = max(counts.items(), key=lambda item: (item[1], item[0][1]))
        if count > 1 and len(seen.nodes) > 2:
            mine = {pair: path for pair, path in left.items() if node == pair[end]}
            others = nodes_text(pair[1 - end] for pair in mine)
            what = f"{seen.name(node)} {'is not reached from' if end else 'does not reach'} {others}"
        else:
            pair = min(left)
            mine = {pair: left[pair]}
            what = f"{seen.name(pair[1])} is not reached from {seen.name(pair[0])}"
        reasons = "; ".join(dict.fromkeys(p.trouble for p in mine.values()))
        targets = {pair[1] for pair in mine}
        target = seen.nodes.get(min(targets)) if len(targets) == 1 else None
        at = f" at {target.address}" if target is not None and target.address else ""
        effect = (
            "Gloo and NCCL connect the ranks at ports that the system chooses, so the world cannot be formed, or "
            "hangs; let every TCP port from 1024 on through between the nodes"
        )
        yield Finding("breaks", f"{what}{at}: {reasons}. {effect}", tuple(sorted({n for p in mine for n in p})))
        left = {pair: path for pair, path in left.items() if pair not in mine}


@check
def _own_addresses(seen: Examination) -> Iterator[Finding]:
    """Carried nodes that give the loopback as their address, where their tunnel ends: other nodes meet themselves."""
    for node, report in sorted(seen.nodes.items()):
        is_loopback = ipaddress.ip_address(report.address.partition("%")[0]).is_loopback
        if report.is_carried and is_loopback and len(seen.nodes) > 1:
            text = f"{seen.name(node)} has no address but {report.address}, where only its own processes reach it"
            effect = "no other node can join its ranks; name its interface with --env GLOO_SOCKET_IFNAME=NAME"
            yield Finding("breaks", f"{text}: {effect}", (node,))


@check
def _names(seen: Examination) -> Iterator[Finding]:
    """Names of nodes that other nodes cannot look up, or that mean another address to them."""
    by_name: dict[tuple[int, str], list[int]] = defaultdict(list)
    hostnames = [r.hostname for r in seen.nodes.values()]
    for (asker, node), path in sorted(seen.paths.items()):
        report = seen.nodes.get(node)
        if report is None or hostnames.count(report.hostname) > 1:
            continue  # several nodes of one name: on one machine, or containers, whose names are not used
        if path.name_trouble:
            by_name[node, f"cannot be looked up ({path.name_trouble})"].append(asker)
        elif report.address not in path.addresses:
            by_name[node, f"means {', '.join(path.addresses)}, not {report.address}"].append(asker)
    for (node, what), askers in by_name.items():
        name = seen.nodes[node].hostname
        text = f"the name of {seen.name(node)} {what} on {nodes_text(askers)}"
        effect = f"jdist itself uses addresses, but tcp://{name}:…, MASTER_ADDR={name} and ssh {name} fail there"
        yield Finding("may break", f"{text}: {effect}; add it to /etc/hosts or DNS", (node, *askers))


@check
def _slow_paths(seen: Examination) -> Iterator[Finding]:
    """The path with the longest round trip, if that is long."""
    far = {pair: p.round_trip for pair, p in seen.paths.items() if p.round_trip > _FAR}
    if far:
        worst, longest = max(far.items(), key=lambda item: item[1])
        between = f"from {seen.name(worst[0])} to {seen.name(worst[1])}"
        text = f"a round trip takes {longest * 1e3:.0f} ms {between}: every collective waits for at least one"
        yield Finding("may break", text, worst)


@check
def _versions(seen: Examination) -> Iterator[Finding]:
    python = {n: ".".join(r.python.split(".")[:2]) for n, r in seen.nodes.items() if r.python}
    effect = "values and functions cannot travel between them, and jdist refuses such nodes"
    yield from _differing("breaks", "Python", python, effect)
    torch = {n: r.torch for n, r in seen.nodes.items() if r.torch}
    effect = "their process groups and saved states may not agree, and jdist refuses such nodes"
    yield from _differing("breaks", "torch", torch, effect)
    jdist = {n: r.jdist for n, r in seen.nodes.items() if r.jdist}
    yield from _differing("breaks", "jdist", jdist, "jdist refuses such nodes")


@check_node
def _no_torch(node: str, report: NodeReport) -> Iterator[tuple[Severity, str]]:
    if not report.torch:
        yield "breaks", f"{node} has no torch: no rank can start there; pip install torch"


@check
def _lacks(seen: Examination) -> Iterator[Finding]:
    """Features that do not work, as torch has not all private names that they use: it is too new, or too old."""
    lacking = {n: "; ".join(f"{o.feature} ({', '.join(o.names)})" for o in r.lacks) for n, r in seen.nodes.items()}
    for features, nodes in _grouped({n: text for n, text in lacking.items() if text}).items():
        text = f"torch on {nodes_text(nodes)} lacks names that jdist uses; not possible there: {features}. {ADVICE}"
        yield Finding("may break", text, nodes)


@check_node
def _unused_gpus(node: str, report: NodeReport) -> Iterator[tuple[Severity, str]]:
    facts = report.facts
    if facts is None or not report.gpu_count:
        return
    if not facts.cuda:
        gpus = "a GPU" if report.gpu_count == 1 else f"{report.gpu_count} GPUs"
        why = "its ranks will compute on the CPU; install a build of torch for CUDA"
        yield "may break", f"{node} has {gpus}, but its torch {facts.version} is a CPU build: {why}"
    elif facts.trouble or not facts.gpus:
        what = f"torch {facts.version} for CUDA {facts.cuda}, driver {report.driver or 'unknown'}"
        yield "breaks", f"{node}: torch cannot use its GPUs ({what}): {facts.trouble or 'it finds none'}"


@check
def _cuda(seen: Examination) -> Iterator[Finding]:
    builds = {n: r.facts for n, r in seen.nodes.items() if r.facts is not None and r.facts.cuda}
    nccl = {n: f.nccl for n, f in builds.items() if f.nccl}
    yield from _differing("breaks", "NCCL", nccl, "nccl groups across them fail or hang; --backend gloo does without")
    cuda = {n: f.cuda for n, f in builds.items()}
    yield from _differing("may break", "CUDA (in torch)", cuda, "compiled extensions of one do not load on the other")
    drivers = {n: r.driver for n, r in seen.nodes.items() if r.driver}
    yield from _differing("note", "NVIDIA driver", drivers, "code for a newer CUDA may run on some only")


@check
def _gpus(seen: Examination) -> Iterator[Finding]:
    fitted = [n for n, r in seen.nodes.items() if r.gpu_count]
    without = [n for n, r in seen.nodes.items() if not r.gpu_count]
    if fitted and without:
        text = (
            f"there are GPUs on {nodes_text(fitted)} and none on {nodes_text(without)}: nccl needs one for every rank "
            "and is refused; --backend gloo runs on all, or leave out the nodes without"
        )
        yield Finding("breaks" if "nccl" in seen.backend else "may break", text, tuple(without))
    models = {n: ", ".join(dict.fromkeys(g.name for g in r.gpus)) for n, r in seen.nodes.items() if r.gpus}
    yield from _differing("may break", "GPUs", models, "each step takes as long as on the slowest")
    if len(set(models.values())) == 1:
        memory = {n: f"{min(g.memory for g in r.gpus) / _GIB:.0f} GiB" for n, r in seen.nodes.items() if r.gpus}
        yield from _differing("may break", "GPU memory", memory, "the smallest runs out first")


@check_node
def _interfaces(node: str, report: NodeReport) -> Iterator[tuple[Severity, str]]:
    names = [w.lstrip("^=").partition(":")[0] for w in report.chosen_interface.split(",")]
    if not report.is_users_choice or report.chosen_interface.startswith("^"):
        return
    if not any(interface.startswith(name) for name in names for interface in report.interfaces):
        there = ", ".join(report.interfaces)
        text = f"{node}: {report.chosen_interface} is set for gloo or NCCL, and there is only {there}"
        yield "breaks", f"{text}: the world cannot be formed; unset it, jdist finds the right one"


@check_node
def _room(node: str, report: NodeReport) -> Iterator[tuple[Severity, str]]:
    for disk in report.disks:
        free = format_memory(disk.free)
        if disk.what == "/dev/shm" and disk.free < _NO_SHM:
            effect = (
                "pushes, pulls, NCCL and DataLoader workers need it, and a process that finds it full is killed "
                "(bus error); in a container: --shm-size=8g or --ipc=host"
            )
            severity: Severity = "breaks" if disk.free < _NO_SHM // 8 else "may break"
            yield severity, f"{node} has {free} of {format_memory(disk.total)} free in /dev/shm: {effect}"
        elif disk.what != "/dev/shm" and disk.free < _LITTLE_DISK:
            effect = "logs, checkpoints and compiled kernels will not fit"
            yield "may break", f"{node} has {free} free for the {disk.what} ({disk.path}): {effect}"
    if not any(d.what == "/dev/shm" for d in report.disks):
        yield "breaks", f"{node} has no /dev/shm: values cannot pass between its ranks and jdist"


@check
def _small_shared_memory(seen: Examination) -> Iterator[Finding]:
    disks = {n: d for n, r in seen.nodes.items() for d in r.disks if d.what == "/dev/shm"}
    small = {n: format_memory(d.total) for n, d in disks.items() if d.free >= _NO_SHM and d.total < _SMALL_SHM}
    for size, nodes in _grouped(small).items():
        text = f"/dev/shm is only {size} on {nodes_text(nodes)}: large values may not fit; --shm-size=8g"
        yield Finding("may break", text, nodes)


@check
def _open_files(seen: Examination) -> Iterator[Finding]:
    needed = _FILES[0] + _FILES[1] * seen.world_size
    limits = {n: r.limits.nofile for n, r in seen.nodes.items() if _is_below(r.limits.nofile, needed)}
    for limit, nodes in _grouped(limits).items():
        effect = f"in a world of {seen.world_size} a rank and its data loaders end with 'Too many open files'"
        text = f"ulimit -n is {limit} on {nodes_text(nodes)}: {effect}; raise it to {max(4096, 2 * needed)}"
        yield Finding("may break", text, nodes)


@check_node
def _limits(node: str, report: NodeReport) -> Iterator[tuple[Severity, str]]:
    threads = _THREADS[0] + _THREADS[1] * report.cpus
    if _is_below(report.limits.nproc, threads):
        text = f"ulimit -u is {report.limits.nproc} on {node}: threads or processes may not start"
        yield "may break", f"{text} ('Resource temporarily unavailable'); raise it to {threads}"
    if report.rdma and report.limits.memlock != UNLIMITED:
        locked = f"ulimit -l is {format_memory(report.limits.memlock)} on {node}, which has {report.rdma[0]}"
        yield "may break", f"{locked}: NCCL cannot register memory with it, and fails; set it to unlimited"


@check
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
    far = max(seen.clocks.values(), key=lambda clock: abs(clock.offset))
    if abs(far.offset) - far.error > _CLOCKS_APART:
        side = "ahead of" if far.offset > 0 else "behind"
        text = f"the nodes' clocks are {abs(far.offset):.1f} s {side} this machine's: files' times cannot be compared"
        yield Finding("note", text, tuple(sorted(seen.clocks)))


@check_node
def _trouble(node: str, report: NodeReport) -> Iterator[tuple[Severity, str]]:
    for text in report.trouble:
        yield "may break", f"{node}: {text}"


def _differing(severity: Severity, what: str, values: Mapping[int, str], effect: str) -> Iterator[Finding]:
    """One finding about the nodes in the minority, if the nodes do not all have the same value."""
    groups = _grouped(values)
    if len(groups) < 2:
        return
    parts = [f"{value or 'none'} on {nodes_text(nodes)}" for value, nodes in groups.items()]
    few = tuple(n for nodes in list(groups.values())[1:] for n in nodes)
    yield Finding(severity, f"{what} differs: {'; '.join(parts)}: {effect}", few)


def _grouped(values: Mapping[int, object]) -> dict[object, tuple[int, ...]]:
    """``{value: nodes}``, the most common value first."""
    groups = ranks_by(sorted(values.items()))
    return {v: tuple(n) for v, n in sorted(groups.items(), key=lambda item: -len(item[1]))}


def _is_below(limit: int, needed: int) -> bool:
    return limit != UNLIMITED and limit < needed
