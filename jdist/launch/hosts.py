"""Hosts: what a user writes after ``--hosts`` and ``--hostfile``."""

import re
from pathlib import Path

from jdist.core.errors import UsageError
from jdist.core.settings import Host

_ENTRY = re.compile(r"^(?P<name>(?:[^@\s:\[\]]+@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^@\s:\[\]]+))(?::(?P<slots>\d{1,6}))?$")
_WORDS = ("slots", "max_slots", "max-slots", "python", "directory")


def parse_hosts(text: str) -> tuple[Host, ...]:
    """``a:2,user@b:2,[fe80::1]:4``: hosts in their order, each with its number of ranks or none. Raises UsageError."""
    hosts = []
    for entry in filter(None, (e.strip() for e in text.split(","))):
        found = _ENTRY.match(entry)
        if found is None:
            raise UsageError(f"--hosts {entry!r}: write HOST or HOST:RANKS, as in a:2,b:2; IPv6 in brackets")
        if found["slots"] is not None and int(found["slots"]) < 1:
            raise UsageError(f"--hosts {entry!r}: a node has at least one rank")
        hosts.append(Host(found["name"].replace("[", "").replace("]", ""), int(found["slots"] or 0)))
    return _checked(hosts, "--hosts")


def read_hostfile(path: str | Path) -> tuple[Host, ...]:
    """The hosts of an OpenMPI hostfile, with ``python=`` and ``directory=`` for the agents. Raises UsageError."""
    try:
        lines = Path(path).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"--hostfile {path} cannot be read: {e}") from None
    entries = [(number, line.partition("#")[0].split()) for number, line in enumerate(lines, 1)]
    hosts = [_host(words, f"--hostfile {path}, line {number}") for number, words in entries if words]
    return _checked(hosts, f"--hostfile {path}")


def _host(words: list[str], where: str) -> Host:
    given: dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in _WORDS:
            raise UsageError(f"{where}: {word!r} is none of slots=N, python=PATH, directory=PATH")
        given[key] = value
    slots = given.get("slots", "0")
    if not slots.isdecimal() or ("slots" in given and int(slots) < 1):
        raise UsageError(f"{where}: slots={slots} is no number of ranks")
    return Host(words[0], int(slots), given.get("python", ""), given.get("directory", ""))


def _checked(hosts: list[Host], where: str) -> tuple[Host, ...]:
    if not hosts:
        raise UsageError(f"{where} names no host")
    names = [h.name for h in hosts]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise UsageError(f"{where} names {twice} twice; say {twice}:RANKS once, with all of its ranks")
    return tuple(hosts)
