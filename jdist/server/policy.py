"""Policy: which clusters may be started from a browser, with which arguments. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from jdist.core.errors import UsageError, nearest

LOCAL = "local"


class StartArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments that a browser may give, each as in :meth:`jdist.AsyncCluster.start`."""

    nproc_per_node: int | str | None = None
    nnodes: int | None = None
    backend: str | None = None
    init_method: str = "env://"
    launcher: str = ""
    name: str | None = None
    timeout: float | None = None
    fork: bool = True
    on_death: Literal["replace", "wait", "stop"] = "replace"
    warm: bool = True
    launcher_args: tuple[str, ...] = ()
    hosts: str = ""
    env: dict[str, str] | None = None
    min_nodes: int = 0
    bind_host: str = ""
    idle_timeout: float | None = None


class Policy(Struct, frozen=True):
    """Limits of one server. The user's own notebooks and terminals are limited by the operating system only."""

    max_ranks: int = 0  # Ranks in all clusters of the user together; 0: any number.
    allowed_launchers: tuple[str, ...] = ()  # Empty: all that are installed.
    default_args: dict[str, Any] = {}

    def complete(self, asked: Mapping[str, Any], ranks_here: int) -> dict[str, Any]:
        """The arguments for a start, from ``asked`` and the defaults; ``ranks_here`` run already.

        Raises UsageError for arguments that are unknown or not allowed.
        """
        given = {**self.default_args, **{key: value for key, value in asked.items() if value is not None}}
        try:
            start = msgspec.convert(given, StartArguments)
        except msgspec.ValidationError as e:
            raise UsageError(f"start: {e}") from None
        launcher = self._launcher(start.launcher)
        if self.max_ranks:
            self.check_ranks(ranks_here + _count(start, launcher))
        arguments = {**msgspec.structs.asdict(start), "launcher": launcher}
        if start.idle_timeout is None:
            del arguments["idle_timeout"]
        return arguments

    def check_ranks(self, ranks: int) -> None:
        """Raises UsageError if more ranks would run than are allowed."""
        if self.max_ranks and ranks > self.max_ranks:
            raise UsageError(
                f"this server allows {self.max_ranks} ranks in all your clusters together, and there would be {ranks}; "
                "stop a cluster, or start fewer ranks (c.Jdist.max_ranks)"
            )

    def launchers(self, installed: list[str]) -> list[str]:
        """The launchers that may be used, the default first."""
        allowed = [n for n in self.allowed_launchers if n in installed] if self.allowed_launchers else installed
        first = str(self.default_args.get("launcher", LOCAL))
        return sorted(allowed, key=lambda name: name != first)

    def _launcher(self, asked: str) -> str:
        allowed = self.allowed_launchers
        if not allowed:
            return asked or LOCAL
        name = asked or (LOCAL if LOCAL in allowed else allowed[0])
        if name not in allowed:
            raise UsageError(f"this server does not allow launcher {name!r}{nearest(name, allowed)}")
        return name


def _count(start: StartArguments, launcher: str) -> int:
    """The number of ranks that will run. Raises UsageError if it would depend on the nodes."""
    text = "" if start.nproc_per_node is None else str(start.nproc_per_node)
    counts = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    nnodes = start.nnodes or (len(counts) if len(counts) > 1 else 1 if launcher == LOCAL else 0)
    if not all(counts) or not nnodes:
        raise UsageError("this server limits the number of ranks: say how many nodes, and how many ranks on each")
    return sum(counts) if len(counts) > 1 else counts[0] * nnodes
