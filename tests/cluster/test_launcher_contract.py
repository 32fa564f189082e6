"""The contract of launchers, for those that need no more than this machine."""

from __future__ import annotations

from jdist.testing import LauncherContract


class TestLocal(LauncherContract):
    options = {"launcher": "local", "warm": False}
