"""Slurm: reads what ``scontrol`` and ``sacct`` print about a job, and explains it to the user. Pure."""

import re
from typing import Literal

from msgspec import Struct

_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_NODE_REASON = re.compile(r"\bReason=(.*?)(?: \[|\s*$)")
_UNDERWAY = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESV_DEL_HOLD")
# What happened to a job, by its state.
_WORDS = {
    "COMPLETED": "has ended",
    "COMPLETING": "is being ended",
    "CANCELLED": "was cancelled",
    "FAILED": "has failed",
    "TIMEOUT": "has reached its time limit",
    "DEADLINE": "has reached its deadline",
    "NODE_FAIL": "was ended because a node of it failed",
    "OUT_OF_MEMORY": "was ended for want of memory",
    "PREEMPTED": "was preempted",
    "BOOT_FAIL": "was ended because a node did not boot",
}


class SlurmJob(Struct, frozen=True):
    """A job, as Slurm describes it."""

    number: str
    state: str  # PENDING, RUNNING, …, in Slurm's words.
    reason: str = ""  # Why it is in that state, in Slurm's words; empty where Slurm names none.
    nodes: str = ""  # Its nodes in Slurm's notation, `bed[1-3]`; empty while it has none.
    nnodes: int = 0
    exit_code: str = ""  # `code:signal`.
    start: str = ""  # The expected start; empty if unknown.
    time_limit: str = ""

    @property
    def phase(self) -> Literal["waiting", "running", "over"]:
        """Whether it waits for its nodes, has them, or has given them back."""
        if self.state in ("PENDING", "CONFIGURING"):
            return "waiting"
        return "running" if self.state in _UNDERWAY else "over"

    def describe(self) -> str:
        """A sentence: "job 4711 is pending: Resources"."""
        if self.phase == "waiting":
            expected = f", expected to start at {self.start}" if self.start else ""
            return f"job {self.number} is {self.state.lower()}{': ' if self.reason else ''}{self.reason}{expected}"
        if self.phase == "running":
            return f"job {self.number} is {self.state.lower()} on {self.nodes}"
        words = _WORDS.get(self.state, f"is {self.state}")
        if self.state == "COMPLETING" and self.reason == "TimeLimit":
            words = _WORDS["TIMEOUT"]
        particulars = [self.state]
        if self.reason and self.reason != self.state:
            particulars.append(self.reason)
        if self.state == "TIMEOUT" and self.time_limit:
            particulars.append(f"time limit {self.time_limit}")
        if self.state == "FAILED" and self.exit_code:
            particulars.append(f"exit code {self.exit_code}")
        return f"job {self.number} {words} ({', '.join(particulars)})"

    def advice(self) -> str:
        """How its owner can avoid such an end; empty if there is no advice."""
        if self.state == "TIMEOUT" or self.reason == "TimeLimit":
            return "-- --time=HH:MM:SS asks for more"
        if self.state == "OUT_OF_MEMORY":
            return "-- --mem=SIZE asks for more"
        if self.state == "NODE_FAIL":
            return "start again; -- --exclude=NODE leaves a bad node out"
        return ""


def parse_job(text: str) -> SlurmJob | None:
    """The first job of ``scontrol show job -o``; None if there is none."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        for name, value in _FIELD.findall(line):
            fields.setdefault(name, "" if value in ("None", "(null)", "Unknown", "N/A") else value)
        if "JobState" in fields:
            break
    if not fields.get("JobId") or not fields.get("JobState"):
        return None
    nnodes = fields.get("NumNodes", "").partition("-")[0]
    return SlurmJob(
        number=fields["JobId"],
        state=fields["JobState"],
        reason=fields.get("Reason", "").replace("_", " "),
        nodes=fields.get("NodeList", ""),
        nnodes=int(nnodes) if nnodes.isdecimal() else 0,
        exit_code=fields.get("ExitCode", ""),
        start=fields.get("StartTime", "") if fields["JobState"] == "PENDING" else "",
        time_limit=fields.get("TimeLimit", ""),
    )


def describe_node(text: str) -> str:
    """``scontrol show node NAME -o`` in some words: "bed2 is DOWN: bad disk"."""
    fields = dict(_FIELD.findall(text))
    reason = _NODE_REASON.search(text)
    return f"{fields.get('NodeName', 'it')} is {fields.get('State', 'unknown')}{f': {reason[1]}' if reason else ''}"


def parse_accounting(number: str, text: str) -> SlurmJob | None:
    """The job in ``sacct -nPX -o State,ExitCode,Reason``, which remembers longer than the controller does."""
    words = text.strip().partition("\n")[0].split("|")
    if len(words) < 3 or not words[0]:
        return None
    reason = "" if words[2] in ("None", "") else words[2]
    return SlurmJob(number, words[0].split()[0].rstrip("+"), reason, exit_code=words[1])  # "CANCELLED by 1000"
