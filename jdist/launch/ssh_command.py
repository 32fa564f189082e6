"""The command with which a login on another host becomes a process of jdist's, and what that process is told first."""

import importlib.resources
import shlex
from collections.abc import Sequence

from msgspec import Struct

# For /bin/sh: run `$0` with the first of the arguments that is an interpreter here. `named` lists the environments of
# conda, a line each with name and folder; an environment of that name comes before a program. The first environment of
# an installation, which has `condabin`, is called base.
_CHOOSE = """
folders() { for b in "$HOME/miniconda3" "$HOME/anaconda3" "$HOME/miniforge3" "$HOME/mambaforge" /opt/conda
"${CONDA_EXE%/*/conda}" "$MAMBA_ROOT_PREFIX"; do for e in "$b" "$b"/envs/*; do echo "$e"; done; done;
cat "$HOME/.conda/environments.txt" 2>/dev/null; };
named() { folders | while read -r e; do n="${e##*/}"; [ -d "$e/condabin" ] && n=base;
[ -n "$n" ] && [ -x "$e/bin/python" ] && echo "$n $e"; done; };
for p in "$@"; do q="$p"; case "$p" in "~/"*) q="$HOME/${p#*/}";; */*|python3) ;;
*) e=$(named | while read -r n e; do [ "$n" = "$p" ] && echo "$e" && break; done);
[ -n "$e" ] && q="$e/bin/python";; esac;
command -v "$q" >/dev/null 2>&1 && exec "$q" -c "$0"; done;
n=$(named | while read -r n e; do echo "$n"; done | sort -u);
echo "there is no $*; environments of conda there:" ${n:-none} >&2; exit 127
"""


class BootstrapReport(Struct, frozen=True):
    """Report of the bootstrap."""

    error: str = ""
    pid: int = 0
    log: str = ""
    progress: str = ""  # What an installation does; another report follows.
    wants_wheel: bool = False  # The wheel is to be sent; another report follows.


def bootstrap_command(pythons: Sequence[str]) -> tuple[str, bytes]:
    """A command line for a login shell of any kind, and the bootstrap, which it reads on standard input.

    The first of ``pythons`` that is there runs it: paths, programs or names of conda environments. The spec follows
    the bootstrap on standard input, on one line.
    """
    bootstrap = importlib.resources.files("jdist.launch").joinpath("ssh_bootstrap.py").read_bytes()
    # It is read byte by byte, so that what follows it stays on standard input. Single quotes, no exclamation mark and
    # no newline inside: every shell takes that.
    n = len(bootstrap)
    read = f'import os,sys;sys.path[:]=filter(None,sys.path);exec(b"".join([os.read(0,1)for _ in range({n})]))'
    command = " ".join(
        ["exec /bin/sh -c", shlex.quote(" ".join(_CHOOSE.split())), shlex.quote(read), *map(shlex.quote, pythons)]
    )
    return command, bootstrap
