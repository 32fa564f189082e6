"""Tests in this folder start real processes: all are marked, and all are checked for what they leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(autouse=True)
def _checked(traces: object) -> None:
    """See ``traces`` in the folder above."""
