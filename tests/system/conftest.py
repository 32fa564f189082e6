"""Tests in this folder use what jdist did not write: schedulers, browsers, hosts, a Hub. Each may fail once.

A failed test is run once more, since a scheduler or a browser has faults of its own. Every such case is printed at the
end of the run with its first failure, so that none is forgotten. More than two in one run are no accident: it fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
MOST_RERUNS = 2
_first_failures: dict[str, pytest.TestReport] = {}  # By test: one may fail, and its teardown after it.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "rerun":
        _first_failures.setdefault(report.nodeid, report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if len(_first_failures) > MOST_RERUNS and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _first_failures:
        return
    reruns = f"{len(_first_failures)} tests were run a second time (a run with more than {MOST_RERUNS} fails)"
    terminalreporter.section(f"{reruns}; their first failures", sep="=")
    for report in _first_failures.values():
        terminalreporter.section(f"{report.nodeid} ({report.when})", sep="_")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.section(title, sep="-")
            terminalreporter.write_line(text)
