"""Tests in this folder run what others wrote: PyTorch's tutorials, and libraries for training, on real clusters."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _checked(traces: object) -> None:
    """See ``traces`` in the folder above."""
