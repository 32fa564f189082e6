"""Network paths: faults of the paths between nodes, each reported once and not for every pair. Pure."""

import statistics
from collections.abc import Iterator, Mapping

from jdist.client.doctor.diagnosis import Examination, Finding, nodes_text
from jdist.core.messages.nodes import NetworkPath
from jdist.core.quantities import format_rate

_FAR = 0.01  # Seconds of round trip from which the network noticeably slows every collective.
_SLOW = 12.5e6  # Bytes per second: 100 Mbit/s.
_UNEVEN = 4.0  # So many times slower than the median path.
_EXAMPLE = 100e6

Paths = Mapping[tuple[int, int], NetworkPath]


def blocked(seen: Examination) -> Iterator[Finding]:
    """Blocked ports: one finding for a node that no other reaches or that reaches no other, else one for each pair."""
    left = {pair: path for pair, path in seen.paths.items() if path.trouble}
    while left:
        node, end = _commonest(left, seen)
        mine = {pair: path for pair, path in left.items() if node == pair[end]}
        if node < 0:
            pair = min(left)
            mine = {pair: left[pair]}
            what = f"{seen.name(pair[1])} is not reached from {seen.name(pair[0])}"
        elif end:
            what = f"{seen.name(node)} is not reached from {nodes_text(p[0] for p in mine)}"
        else:
            what = f"{seen.name(node)} does not reach {nodes_text(p[1] for p in mine)}"
        reasons = "; ".join(dict.fromkeys(p.trouble for p in mine.values()))
        targets = {p[1] for p in mine}
        target = seen.nodes.get(min(targets)) if len(targets) == 1 else None
        at = f" at {target.address}" if target is not None and target.address else ""
        effect = (
            "Gloo and NCCL connect the ranks at ports that the system chooses, so the world cannot be formed, or "
            "hangs; let every TCP port from 1024 on through between the nodes"
        )
        yield Finding("breaks", f"{what}{at}: {reasons}. {effect}", tuple(sorted({n for p in mine for n in p})))
        left = {pair: path for pair, path in left.items() if pair not in mine}


def _commonest(left: Paths, seen: Examination) -> tuple[int, int]:
    """(node, 1) if most of the paths lead to it, (node, 0) if from it; (-1, 0) if no node stands out."""
    counts = {(pair[end], end): 0 for pair in left for end in (1, 0)}
    for pair in left:
        for end in (1, 0):
            counts[pair[end], end] += 1
    (node, end), count = max(counts.items(), key=lambda item: (item[1], item[0][1]))
    return (node, end) if count > 1 and len(seen.nodes) > 2 else (-1, 0)


def names(seen: Examination) -> Iterator[Finding]:
    """Names of nodes that other nodes cannot look up, or that mean another address to them."""
    by_name: dict[tuple[int, str], list[int]] = {}
    hostnames = [r.hostname for r in seen.nodes.values()]
    for (asker, node), path in sorted(seen.paths.items()):
        report = seen.nodes.get(node)
        if report is None or hostnames.count(report.hostname) > 1:
            continue  # several nodes of one name: on one machine, or containers, whose names are not used
        if path.name_trouble:
            by_name.setdefault((node, f"cannot be looked up ({path.name_trouble})"), []).append(asker)
        elif report.address not in path.addresses:
            means = f"means {', '.join(path.addresses)}, not {report.address}"
            by_name.setdefault((node, means), []).append(asker)
    for (node, what), askers in by_name.items():
        name = seen.nodes[node].hostname
        text = f"the name of {seen.name(node)} {what} on {nodes_text(askers)}"
        effect = f"jdist itself uses addresses, but tcp://{name}:…, MASTER_ADDR={name} and ssh {name} fail there"
        yield Finding("may break", f"{text}: {effect}; add it to /etc/hosts or DNS", (node, *askers))


def slow(seen: Examination) -> Iterator[Finding]:
    """Paths with a long round trip or a low bandwidth: the worst of each."""
    far = {pair: p for pair, p in seen.paths.items() if p.round_trip > _FAR}
    if far:
        worst = max(far, key=lambda pair: far[pair].round_trip)
        longest = far[worst].round_trip
        between = f"from {seen.name(worst[0])} to {seen.name(worst[1])}"
        text = f"a round trip takes {longest * 1e3:.0f} ms {between}: every collective waits for at least one"
        yield Finding("may break", text, worst)
    measured = {pair: p.bandwidth for pair, p in seen.paths.items() if p.bandwidth}
    if not measured:
        return
    usual = statistics.median(measured.values())
    worst = min(measured, key=lambda pair: measured[pair])
    least = measured[worst]
    if least < _SLOW or (len(measured) > 2 and least * _UNEVEN < usual):
        others = f", the others usually {format_rate(usual)}" if len(measured) > 2 and least * _UNEVEN < usual else ""
        cost = f"100 MB of gradients take {_EXAMPLE / least:.1f} s on that path, and all ranks wait for it"
        between = f"from {seen.name(worst[0])} to {seen.name(worst[1])}"
        yield Finding("may break", f"only {format_rate(least)} {between}{others}: {cost}", worst)
