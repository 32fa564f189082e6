"""Addresses: at which a host may be reached by others, and through which of its interfaces it reaches them."""

from __future__ import annotations

import ipaddress
import socket

import psutil

_FAR = (("192.0.2.1", 9), ("2001:db8::1", 9))
"""Addresses for documentation, which nobody has: the way there is the default route."""


def own_addresses() -> tuple[str, ...]:
    """Every address of this host that another may use, those of the default routes first; "127.0.0.1" if none.

    Link-local ones are left out: they mean nothing without the name of the asker's interface.
    """
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        a.address
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
        for a in addresses
        if a.family in (socket.AF_INET, socket.AF_INET6) and _is_of_use(a.address)
    ]
    first = [a for a in map(_towards_or_none, _FAR) if a in found]
    return tuple(dict.fromkeys([*first, *found])) or ("127.0.0.1",)


def _is_of_use(address: str) -> bool:
    read = ipaddress.ip_address(address.partition("%")[0])
    return not (read.is_loopback or read.is_link_local or read.is_multicast)


def _towards_or_none(peer: tuple[str, int]) -> str | None:
    try:
        return address_towards(peer)
    except OSError:
        return None


def address_towards(peer: tuple[str, int]) -> str:
    """The address of the interface through which ``peer`` is reached; no packet is sent. Raises OSError."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.connect(peer)
        return str(s.getsockname()[0])
