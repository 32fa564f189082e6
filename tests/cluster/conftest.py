"""Tests in this folder start real clusters on this machine, and are checked for what they leave behind."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _checked(traces: object) -> None:
    """See ``traces`` in the folder above."""
