"""The command ``jdist run``: a job on a cluster of its own, or a script on a running cluster. See docs/batch.md."""

import os
import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from jdist.client import find
from jdist.core.errors import UsageError
from jdist.core.launchers.task import read_task
from jdist.core.messages.membership import LauncherTask
from jdist.core.quantities import ArgumentParser, parse_duration
from jdist.notebook.batch.display import tell
from jdist.notebook.batch.job import Job, run_job
from jdist.notebook.batch.tasks import as_tasks, become_node, end_own_node, meeting_place, start_own_node
from jdist.notebook.options import add_script_options, add_start_options, start_options
from jdist.notebook.verbs.code import cell_of
from jdist.notebook.verbs.registry import Words

_RUNNING = {"cluster", "ranks", "group"}  # Options of a run on a running cluster.
_EITHER = {"module", "timeout"}
_HOLD_FOR = 8 * 3600.0
_SCRIPT = re.compile(r"[^-].*\.py")
# Variables that a scheduler sets in a job, and what the job is called.
_JOBS = {
    "SLURM_JOB_ID": "a Slurm job",
    "PBS_JOBID": "a PBS job",
    "LSB_JOBID": "an LSF job",
    "FLUX_JOB_ID": "a Flux job",
    "RAY_JOB_CONFIG_JSON_ENV_VAR": "a Ray job",
}
_HELP = """
Without a cluster: starts one, runs a script on every rank, stops it, and ends with the script's exit code. So it is
with options of start, with --hold or --hold-for, in a batch job, and where no cluster runs. With --cluster, -r or -g,
and else: runs the script in the live session of a running cluster.

Words after SCRIPT.py are the script's. Words between -- and SCRIPT.py are the launcher's; another -- may end them.
"""


class CommandLine(Struct, frozen=True):
    """The words of the command, by whom they are for."""

    own: list[str]
    options: set[str]  # Options that are in ``own``.
    launcher: list[str]
    script: list[str]  # The script or module, and its arguments.


class OnRunning(Struct, frozen=True):
    """The command is for a running cluster: its name ("": the newest), and the words for the verb."""

    cluster: str
    words: list[str]


def run_parser() -> ArgumentParser:
    """The parser of the words before the script's own."""
    p = ArgumentParser("jdist run", "Run a script that was written for torchrun on every rank.")
    p.usage = "jdist run [options] [-- LAUNCHER'S WORDS] SCRIPT.py [args]\n       jdist run [options] -m MODULE [args]"
    p.epilog = _HELP
    add_script_options(p)
    held = "how long a job is kept that has failed, or has reached a breakpoint; default 8h"
    p.add_argument("--hold-for", type=parse_duration, metavar="TIME", help=held)
    p.add_argument("--cluster", metavar="NAME", help="a running cluster")
    p.add_ranks()
    add_start_options(p, wait="--start-timeout")
    return p


def split(words: Words) -> CommandLine:
    """Raises UsageError when it is not clear where the script's own words begin."""
    count, options = run_parser().leading_options(words)
    own, rest = list(words[:count]), list(words[count:])
    if rest[:1] != ["--"]:
        return CommandLine(own, options, [], rest)
    rest = rest[1:]
    ends = (n for n, word in enumerate(rest) if word == "--" or (_SCRIPT.fullmatch(word) and "module" not in options))
    end = next(ends, None)
    if end is None:
        raise UsageError("jdist run: the launcher's words after -- are followed by SCRIPT.py, or by another --")
    return CommandLine(own, options, rest[:end], rest[end:] if rest[end] != "--" else rest[end + 1 :])


def run_command(words: Words, environ: Mapping[str, str] = os.environ) -> int | OnRunning:
    """Run a job and return its exit code, unless the command is for a running cluster. Raises HelpWanted."""
    line = split(words)
    options = run_parser().parse(line.own)
    own_only = sorted(line.options - _RUNNING - _EITHER - {"hold"}) + ["--"] * bool(line.launcher)
    running_only = sorted(line.options & _RUNNING)
    if own_only and running_only:
        first, second = (word.replace("_", "-") for word in (running_only[0], own_only[0]))
        raise UsageError(f"jdist run: {first} is about a running cluster, and {second} about one that is started")
    if not line.script:
        raise UsageError(f"jdist run: a script is missing\n{run_parser().format_usage().strip()}")
    name, task = options.cluster or "", read_task(environ)
    if not (running_only or own_only or options.hold or task):
        name = used_unasked(environ)
    if running_only or name:
        at = [n for n, word in enumerate(line.own) if word.partition("=")[0] == "--cluster"]
        kept = [w for n, w in enumerate(line.own) if n not in at and not (n - 1 in at and "=" not in line.own[n - 1])]
        return OnRunning(name, [*kept, *line.script])
    cell = cell_of(line.script, is_module=options.module)
    deadline = options.timeout
    options.timeout, options.rest = options.start_timeout, line.launcher
    hold_for = options.hold_for or _HOLD_FOR
    job = Job(cell, start_options(options), options.hold, hold_for, deadline)
    return run_job(job) if task is None else _run_together(job, task, environ)


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


def used_unasked(environ: Mapping[str, str]) -> str:
    """The running cluster that a command uses which says nothing about clusters; "": it gets one of its own."""
    name = next(iter(find.here()), "")
    job = next((words for variable, words in _JOBS.items() if environ.get(variable)), "")
    if job and name:
        tell(f"this is {job}, so the script gets a cluster of its own; --cluster {name} would use the one that runs")
    return "" if job else name
