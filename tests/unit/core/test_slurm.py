"""What Slurm says about a job, and what that means."""

from __future__ import annotations

import pytest

from jdist.core.launchers import SlurmJob, describe_node, parse_accounting, parse_job

SHOWN = (
    "JobId=3 JobName=my job UserId=root(0) GroupId=root(0) MCS_label=N/A Account=(null) JobState={state} "
    "Reason={reason} Dependency=(null) Restarts=0 ExitCode={code} RunTime=00:00:36 TimeLimit=00:01:00 TimeMin=N/A "
    "StartTime={start} EndTime=2026-11-21T11:33:31 AllocNode:Sid=localhost:30343 ReqNodeList=(null) "
    "NodeList={nodes} BatchHost=bed1 NumNodes={nnodes} NumCPUs=3 CPUs/Task=1 TRES=cpu=3,node=3 Comment=JobState=RUNNING"
)


def shown(state: str, reason: str = "None", code: str = "0:0", start: str = "Unknown", nnodes: str = "3") -> SlurmJob:
    job = parse_job(SHOWN.format(state=state, reason=reason, code=code, start=start, nodes="bed[1-3]", nnodes=nnodes))
    assert job is not None
    return job


def test_a_job_is_parsed() -> None:
    assert shown("RUNNING") == SlurmJob(
        "3", "RUNNING", nodes="bed[1-3]", nnodes=3, exit_code="0:0", time_limit="00:01:00"
    )
    assert shown("PENDING", nnodes="3-3").nnodes == 3


@pytest.mark.parametrize(
    "text", ["", "\n", "slurm_load_jobs error: Invalid job id specified", "NodeName=bed1 State=IDLE"]
)
def test_what_is_no_job(text: str) -> None:
    assert parse_job(text) is None


@pytest.mark.parametrize(
    ("job", "phase", "words", "advice"),
    [
        (shown("PENDING", "Resources"), "waiting", "job 3 is pending: Resources", ""),
        (
            shown("PENDING", "ReqNodeNotAvail,_UnavailableNodes:bed3", start="2026-11-22T07:00:00"),
            "waiting",
            "job 3 is pending: ReqNodeNotAvail, UnavailableNodes:bed3, expected to start at 2026-11-22T07:00:00",
            "",
        ),
        (shown("CONFIGURING"), "waiting", "job 3 is configuring", ""),
        (shown("RUNNING"), "running", "job 3 is running on bed[1-3]", ""),
        (
            shown("TIMEOUT", "TimeLimit", "0:15"),
            "over",
            "job 3 has reached its time limit (TIMEOUT, TimeLimit, time limit 00:01:00)",
            "-- --time=HH:MM:SS asks for more",
        ),
        (
            shown("COMPLETING", "TimeLimit"),
            "over",
            "job 3 has reached its time limit (COMPLETING, TimeLimit)",
            "-- --time=HH:MM:SS asks for more",
        ),
        (shown("COMPLETING"), "over", "job 3 is being ended (COMPLETING)", ""),
        (shown("CANCELLED"), "over", "job 3 was cancelled (CANCELLED)", ""),
        (
            shown("FAILED", "NonZeroExitCode", "7:0"),
            "over",
            "job 3 has failed (FAILED, NonZeroExitCode, exit code 7:0)",
            "",
        ),
        (
            shown("NODE_FAIL", "NodeDown"),
            "over",
            "job 3 was ended because a node of it failed (NODE_FAIL, NodeDown)",
            "start again; -- --exclude=NODE leaves a bad node out",
        ),
        (shown("REVOKED"), "over", "job 3 is REVOKED (REVOKED)", ""),
    ],
)
def test_states_in_words(job: SlurmJob, phase: str, words: str, advice: str) -> None:
    assert (job.phase, job.describe(), job.advice()) == (phase, words, advice)


def test_a_node_in_words() -> None:
    text = (
        "NodeName=bed2 Arch=x86_64 CPUTot=4 State=DOWN ThreadsPerCore=1 CapWatts=n/a Reason=bad disk [root@2026-11-21]"
    )
    assert describe_node(text) == "bed2 is DOWN: bad disk"
    assert describe_node("NodeName=bed2 State=IDLE Partitions=all") == "bed2 is IDLE"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("CANCELLED by 1000|0:0|None", "job 5 was cancelled (CANCELLED)"),
        ("TIMEOUT|0:0|None", "job 5 has reached its time limit (TIMEOUT)"),
        ("FAILED|3:0|None", "job 5 has failed (FAILED, exit code 3:0)"),
    ],
)
def test_what_accounting_remembers(line: str, words: str) -> None:
    job = parse_accounting("5", f"{line}\n")
    assert job is not None
    assert job.describe() == words
    assert parse_accounting("5", "") is None
