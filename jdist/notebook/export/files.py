"""Export: writes what a client has run as a script for torchrun, whole or not at all, and not over the user's work."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from hashlib import blake2b
from typing import TYPE_CHECKING

from msgspec import Struct

from jdist.core.errors import UsageError
from jdist.notebook.export.script import ScriptWorld, compose
from jdist.notebook.text.remedy_text import typed

if TYPE_CHECKING:
    from jdist.client.cluster import Cluster

_MARK = re.compile(r"# Written by %dist export \(([0-9a-f]{16})\)[^\n]*\n")


class Exported(Struct, frozen=True):
    """The script that was written."""

    path: str
    cells: int  # The number of cells in the script.
    left_out: int  # The number of cells that are only comments in it.
    warnings: tuple[str, ...]  # Each names a cell and says what is not as it was in the session.


def export(cluster: Cluster, path: str, *, force: bool = False) -> Exported:
    """Write what ``cluster`` was asked to run, by this process, as a script: ``torchrun … path``.

    Raises UsageError for a file that export has not written, or that was edited since, unless ``force``; and if nothing
    was run.
    """
    history, topology = cluster.history, cluster.topology
    if not history.steps:
        raise UsageError(
            f"nothing was run on cluster {cluster.name} from here; cells of other notebooks, and of this one before "
            "its kernel was restarted, cannot be exported here"
        )
    world = ScriptWorld(tuple(len(topology.ranks_on(n)) for n in range(topology.nnodes)), cluster.backend)
    script = compose(history.steps, world, os.path.basename(path), history.forgotten)
    return Exported(write(path, script.text, force=force), script.cells, script.left_out, script.warnings)


def write(path: str, text: str, *, force: bool) -> str:
    """Write the script; returns its absolute path. Raises UsageError if it cannot, or may not replace what is there."""
    target = os.path.realpath(os.path.expanduser(path))
    if not force:
        _check(path, target)
    draft = f"{target}.{uuid.uuid4().hex[:8]}.tmp"  # beside the file, which it replaces in one step
    try:
        with open(draft, "x", encoding="utf-8", newline="\n") as f:
            f.write(marked(text))
        os.replace(draft, target)
    except OSError as e:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise UsageError(f"{typed('export')}: {path} cannot be written: {e.strerror or e}") from None
    return target


def marked(text: str) -> str:
    """The script with its first line, which shows later whether the script was edited."""
    return f"# Written by %dist export ({_digest(text)}); export will not overwrite it once it is edited.\n{text}"


def _check(path: str, target: str) -> None:
    try:
        with open(target, encoding="utf-8", newline="") as f:
            text = f.read()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as e:
        problem = f"exists but cannot be read: {getattr(e, 'strerror', None) or e}; name another file"
    else:
        found = _MARK.match(text)
        if found is not None and found[1] == _digest(text[found.end() :]):
            return
        problem = "exists and was not written by export" if found is None else "was edited after export wrote it"
        problem += "; name another file, or --force replaces it"
    raise UsageError(f"{typed('export')}: {path} {problem}")


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()
