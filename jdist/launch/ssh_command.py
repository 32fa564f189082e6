"""The command with which a login on another host becomes a process of jdist's, and what that process is told first."""

import importlib.resources
import shlex
from collections.abc import Sequence

from msgspec import Struct

# For /bin/sh: run `$0` with the first of the arguments that is an interpreter here.
_CHOOSE = (
    'for p in "$@"; do command -v "$p" >/dev/null 2>&1 && exec "$p" -c "$0"; done; echo "there is no $*" >&2; exit 127'
)


class BootstrapReport(Struct, frozen=True):
    """Report of the bootstrap."""

    error: str = ""
    pid: int = 0
    log: str = ""


def bootstrap_command(pythons: Sequence[str]) -> tuple[str, bytes]:
    """A command line for a login shell of any kind, and the bootstrap, which it reads on standard input.

    The first of ``pythons`` that is there runs it. The spec follows the bootstrap on standard input, on one line.
    """
    bootstrap = importlib.resources.files("jdist.launch").joinpath("ssh_bootstrap.py").read_bytes()
    # It is read byte by byte, so that what follows it stays on standard input. Single quotes, no exclamation mark and
    # no newline inside: every shell takes that.
    n = len(bootstrap)
    read = f'import os,sys;sys.path[:]=filter(None,sys.path);exec(b"".join([os.read(0,1)for _ in range({n})]))'
    command = " ".join(["exec /bin/sh -c", shlex.quote(_CHOOSE), shlex.quote(read), *map(shlex.quote, pythons)])
    return command, bootstrap
