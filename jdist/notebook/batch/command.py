"""The command ``jdist run``: a job on a cluster of its own, or a script on a running cluster. See docs/batch.md."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from jdist.client import find
from jdist.client.lifecycle.sites import list_at, split_name
from jdist.client.threads import bridge
from jdist.core.errors import UsageError
from jdist.core.launchers import read_task
from jdist.core.messages.membership import LauncherTask
from jdist.core.quantities import ArgumentParser, parse_duration
from jdist.notebook.batch.display import tell
from jdist.notebook.batch.job import Job, as_tasks, become_node, end_own_node, meeting_place, run_job, start_own_node
from jdist.notebook.options import add_at_options, add_script_options, add_start_options, start_options
from jdist.notebook.verbs.code import cell_of
from jdist.notebook.verbs.lifecycle import host_of
from jdist.notebook.verbs.registry import Words

_RUNNING = {"cluster", "ranks", "group"}  # Options of a run on a running cluster.
_OF_CLUSTER = {"--cluster", "--at", "--python", "--install"}  # Options that say which cluster it is.
_EITHER = {"module", "timeout", "at", "python", "install"}
_HOLD_FOR = 8 * 3600.0
_SCRIPT = re.compile(r"[^-].*\.py")
# Variables that schedulers set in their jobs, and names of these jobs.
_JOBS = {
    "SLURM_JOB_ID": "a Slurm job",
    "PBS_JOBID": "a PBS job",
    "LSB_JOBID": "an LSF job",
    "FLUX_JOB_ID": "a Flux job",
    "RAY_JOB_CONFIG_JSON_ENV_VAR": "a Ray job",
}
_HELP = """
Starts a cluster, runs a script on every rank, stops the cluster, and exits with the script's exit code. This is what
happens with options of start, with --hold or --hold-for, in a batch job, and if no cluster is running. With --cluster,
-r or -g, and in all other cases, the script runs in the live session of a running cluster.

With --at, both are clusters of that host, and so are the script's ranks; the script and its imports are sent there.

Arguments after SCRIPT.py are passed to the script. Arguments between -- and SCRIPT.py are passed to the launcher; a
second -- can mark their end.
"""


class CommandLine(Struct, frozen=True):
    """The arguments of the command, by recipient."""

    own: list[str]
    options: set[str]  # Options that are in ``own``.
    launcher: list[str]
    script: list[str]  # The script or module, and its arguments.


class OnRunning(Struct, frozen=True):
    """The command is for a running cluster: its name, and the verb's arguments."""

    cluster: str  # "": the newest of this host; "HOST:": the newest there.
    words: list[str]


def run_parser() -> ArgumentParser:
    """The parser of the arguments before the script's own."""
    p = ArgumentParser("jdist run", "Run a script that was written for torchrun on every rank.")
    p.usage = "jdist run [options] [-- LAUNCHER ARGS] SCRIPT.py [args]\n       jdist run [options] -m MODULE [args]"
    p.epilog = _HELP
    add_script_options(p)
    held = "how long to hold a job that has failed or reached a breakpoint; default 8h"
    p.add_argument("--hold-for", type=parse_duration, metavar="TIME", help=held)
    p.add_argument("--cluster", metavar="NAME", help="a running cluster")
    p.add_ranks()
    add_start_options(p, wait="--start-timeout")
    add_at_options(p)
    return p


def split(words: Words) -> CommandLine:
    """Raises UsageError if it is not clear where the script's own arguments begin."""
    count, options = run_parser().leading_options(words)
    own, rest = list(words[:count]), list(words[count:])
    if rest[:1] != ["--"]:
        return CommandLine(own, options, [], rest)
    rest = rest[1:]
    ends = (n for n, word in enumerate(rest) if word == "--" or (_SCRIPT.fullmatch(word) and "module" not in options))
    end = next(ends, None)
    if end is None:
        raise UsageError("jdist run: the launcher arguments after -- must be followed by SCRIPT.py or another --")
    return CommandLine(own, options, rest[:end], rest[end:] if rest[end] != "--" else rest[end + 1 :])


def run_command(words: Words, environ: Mapping[str, str] = os.environ) -> int | OnRunning:
    """Run a job and return its exit code, unless the command is for a running cluster. Raises HelpWanted."""
    line = split(words)
    options = run_parser().parse(line.own)
    own_only = sorted(line.options - _RUNNING - _EITHER - {"hold"}) + ["--"] * bool(line.launcher)
    running_only = sorted(line.options & _RUNNING)
    if own_only and running_only:
        first, second = (
            f"--{name.replace('_', '-')}" if name != "--" else name for name in (running_only[0], own_only[0])
        )
        raise UsageError(
            f"jdist run: {first} is for a running cluster and {second} for a new one; use only one of them"
        )
    if not line.script:
        raise UsageError(f"jdist run: no script was given\n{run_parser().format_usage().strip()}")
    task = read_task(environ)
    host, name = host_of(options, options.cluster)
    if not (running_only or own_only or options.hold or task):
        name = used_unasked(environ, host)
    if host:
        sys.path.append(_directory_of(line.script, is_module=options.module))  # ranks there request files in it
    if running_only or name:
        return OnRunning(f"{host}:{name or ''}" if host else name or "", [*_words_of_verb(line.own), *line.script])
    if host and task:
        raise UsageError(
            f"jdist run --at {host}: {task.launcher} started {task.size} copies of this command, which would be the "
            f"nodes; run it once, with the --launcher of {host}, or with --at= if the ranks are to be here"
        )
    cell = cell_of(line.script, is_module=options.module, in_job=True)
    deadline = options.timeout
    options.timeout, options.rest = options.start_timeout, line.launcher
    hostfile, options.hostfile = options.hostfile if host else None, None if host else options.hostfile
    hold_for = options.hold_for or _HOLD_FOR
    job = Job(cell, start_options(options), options.hold, hold_for, deadline, host, hostfile)
    return run_job(job) if task is None else _run_together(job, task, environ)


def _directory_of(script: Words, *, is_module: bool) -> str:
    """Where Python would import a script's modules from first."""
    return os.getcwd() if is_module else str(Path(script[0]).expanduser().resolve().parent)


def _words_of_verb(own: Words) -> Words:
    """The words that the verb takes, which is carried out on a cluster that has been found."""
    kept, is_value = [], False
    for word in own:
        name, equals, _ = word.partition("=")
        if name in _OF_CLUSTER:
            is_value = not equals and name != "--install"
        elif is_value:
            is_value = False
        else:
            kept.append(word)
    return kept


def _run_together(job: Job, task: LauncherTask, environ: Mapping[str, str]) -> int:
    """Run the job of several tasks in the first of them; the others become nodes of its cluster."""
    place = meeting_place(task, environ)
    job = msgspec.structs.replace(job, start=as_tasks(job.start, task, place))
    if task.rank:
        become_node(place)
    place.unlink(missing_ok=True)  # of a job that was killed
    node = start_own_node(place)
    try:
        return run_job(job)
    finally:
        end_own_node(node)


def used_unasked(environ: Mapping[str, str], host: str = "") -> str:
    """The running cluster to use if the command does not say which; "": the script gets one of its own.

    It is one of ``host``, by its name there, or of this host.
    """
    there = bridge().call(list_at(host)).items() if host else ()
    found = [split_name(called)[1] or "" for called, known in there if known.is_here] if host else list(find.here())
    name = next(iter(found), "")
    job = next((words for variable, words in _JOBS.items() if environ.get(variable)), "")
    if job and name:
        tell(f"this is {job}, so the script runs on a cluster of its own; --cluster {name} selects the running one")
    return "" if job else name
