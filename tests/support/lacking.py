"""Lacking: what this machine does not have. A user's run skips the test, with the reason; in CI it is a failure."""

from __future__ import annotations

import os
import shlex
import subprocess
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


def with_own(*folders: str) -> list[str]:
    """The start of a command for which these folders are empty and its own."""
    user = () if os.geteuid() == 0 else ("--map-root-user", "--user")
    mounts = " && ".join(f"mount -t tmpfs tmpfs {shlex.quote(folder)}" for folder in folders)
    words = ["unshare", "--mount", *user, "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    try:
        subprocess.run([*words, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        lacking("this user may not make a mount namespace (unshare --mount)")
    return words
