"""Lacking: what this machine does not have. A user's run skips the test, with the reason; in CI it is a failure."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """End the test for want of something that `.ci/run` installs, or that its machine has."""
    if os.environ.get("JDIST_CI"):
        pytest.fail(f"missing in CI: {reason}")
    pytest.skip(reason)


def need(package: str) -> None:
    """End the test if a package of the extra ``test`` is not installed."""
    if find_spec(package) is None:
        lacking(f"the package {package}: pip install 'jdist[test]'")
