"""Tests in this folder drive a real JupyterLab in a real Chromium; what they share is told in ``browsing.py``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from support.lab.browsing import Lab, LabServer, chromium, extension

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure is shown with what the server wrote: a page shows only that nothing came."""
    report = yield
    server = getattr(item, "funcargs", {}).get("lab_server")
    if report.failed and server is not None:
        report.sections.append(("JupyterLab's server", server.said()))
    return report


@pytest.fixture(scope="session")
def lab_server(run_traces: object, runtime_directory: Path) -> Iterator[LabServer]:
    """One JupyterLab for the session, with jdist's extension; it ends with its kernels."""
    with tempfile.TemporaryDirectory(dir=runtime_directory, prefix="lab-") as bed:
        server = LabServer(Path(bed), runtime_directory, [extension(Path(bed) / "extensions")])
        yield server
        assert server.process.poll() is None, server.said()
        server.end()


@pytest.fixture(scope="module")
def lab(lab_server: LabServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The server as a browser shows it. For a module, not for the session: see ``chromium``."""
    kept = os.environ.get("JDIST_PICTURES")
    pictures = Path(kept) if kept else tmp_path_factory.mktemp("pictures")
    pictures.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        yield Lab(lab_server, browser, pictures)


@pytest.fixture(scope="module")
def signal_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ends the cell that goes on until it is there."""
    return tmp_path_factory.mktemp("signals") / "end"
