"""Commands: the ``jdist`` command line, in the words of ``%dist``. Exit codes: 0, 1 (a rank failed), 2 (usage)."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from jdist.core import __version__
from jdist.core.errors import JdistError, UsageError, nearest
from jdist.wire.processes import prepare_streams

_USAGE = """\
usage: jdist COMMAND [options]     jdist COMMAND --help has them all

The words of %dist in a notebook. Exit codes: 0, 1 (a rank failed), 2 (usage).
"""
_OUTPUT_LOST = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_JOIN = "be a node of a cluster: join [-n RANKS] LINE, FILE or - (the line on standard input)"


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    try:
        code = _main(words)
        sys.stdout.flush()
    except JdistError as e:
        print(e, file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    except OSError as e:
        if e.errno not in _OUTPUT_LOST or e.filename is not None:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 — Python would write the rest when it ends
        if e.errno != errno.EPIPE:  # else its reader has ended
            print(f"the output cannot be written: {e.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _main(words: list[str]) -> int:
    if words and words[0] == "controller":
        from jdist.controller.main import main as controller

        return controller()
    if words == ["serve"]:
        from jdist.client.serve import main as serve

        return serve()
    if words in (["reach"], ["node-end"]):
        from jdist.launch.node_end import main as node_end

        return node_end(words[0])
    if words in (["--version"], ["-V"]):
        print(f"jdist {__version__}")
        return 0
    from jdist.core.quantities import HelpWanted
    from jdist.notebook.text.remedy_text import style, worded_errors

    with style("command"), worded_errors():
        try:
            return _carry_out(words)
        except HelpWanted as text:
            print(text)
            return 0


def _carry_out(words: list[str]) -> int:
    if words and words[0] == "join":
        return _join(words[1:])
    from jdist.notebook.cli import COMMANDS, run_command

    if not words or words[0] in ("-h", "--help"):
        print(_USAGE)
        print("\n".join(f"  jdist {name:10} {text}" for name, text in {**COMMANDS, "join": _JOIN}.items()))
        return 0
    if words[0] not in COMMANDS:
        raise UsageError(f"jdist has no command {words[0]!r}{nearest(words[0], [*COMMANDS, 'join'])}")
    return run_command(words[0], words[1:])


def _join(words: list[str]) -> int:
    from jdist.core.quantities import ArgumentParser

    parser = ArgumentParser("jdist join", "Run this node's agent until the cluster ends.")
    parser.add_argument("line", help="the join line, a file that contains it, or - to read it from standard input")
    parser.add_argument("-n", "--nproc-per-node", type=int, default=0, help="ranks on this node")
    parser.add_argument("--node-rank", type=int, default=-1, help="this node's number; default: any")
    parser.add_argument("--no-fork", action="store_true", help="start workers as fresh interpreters")
    parser.add_argument("--until", type=int, default=0, metavar="PID", help="end when this process has ended")
    parser.add_argument("--wait", type=float, default=0.0, metavar="S", help="wait up to S seconds for the file")
    options = parser.parse(words)
    if options.line.startswith("jdist1."):
        _hide(options.line, words)
    from jdist.agent.main import main as agent
    from jdist.wire.transport.invitations import exposure, find_line, wait_for_line

    if options.wait:
        return agent(
            lambda: wait_for_line(options.line, options.wait),
            *(options.nproc_per_node, options.node_rank, not options.no_fork, options.until),
        )
    line = "" if options.line == "-" else find_line(options.line)
    if exposed := exposure(options.line):
        print(f"jdist agent: {exposed}", file=sys.stderr)

    def read_line() -> str:
        return line or sys.stdin.readline()

    return agent(read_line, options.nproc_per_node, options.node_rank, not options.no_fork, options.until)


def _hide(line: str, words: list[str]) -> NoReturn:
    """Start again with the line on standard input, because other users can read argv."""
    outlet, inlet = os.pipe()
    os.write(inlet, line.encode() + b"\n")
    os.close(inlet)
    os.dup2(outlet, 0)
    rest = ["-" if word == line else word for word in words]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "jdist", "join", *rest])
