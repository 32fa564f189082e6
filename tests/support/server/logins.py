"""Logins: what stands in for OpenSSH where a test has no other host: the command runs here, as a host of that name.

A host has a folder of its own for connection files and environments, so that they are not this one's. ``locked`` asks
for `PASSPHRASE`, and ``patient`` does so up to three times; ``slow`` takes a while to refuse a login without questions.
A login is broken by killing its processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil

PASSPHRASE = "open sesame"
_SSH = """#!/bin/bash
host="${{@: -2:1}}"
refuse() {{ echo "Permission denied (publickey)." >&2; exit 255; }}
if [ "$host" = locked ]; then
  case "$*" in *BatchMode=yes*) refuse;; esac
  [ "$("$SSH_ASKPASS" "Enter passphrase for key '{bed}/locked': ")" = "{passphrase}" ] || refuse
fi
if [ "$host" = patient ]; then
  case "$*" in *BatchMode=yes*) refuse;; esac
  for n in 1 2 3 refuse; do
    [ $n != refuse ] || refuse
    [ "$("$SSH_ASKPASS" "patient's password: ")" != "{passphrase}" ] || break
  done
fi
if [ "$host" = slow ]; then
  case "$*" in *BatchMode=yes*) sleep 3; refuse;; esac
  "$SSH_ASKPASS" "slow's password: "
  refuse
fi
echo "$host" >> "{bed}/made"
[ "$host" != nowhere ] || {{ echo "ssh: Could not resolve hostname nowhere" >&2; exit 255; }}
mkdir -p -m 700 "{bed}/$host"
export JUPYTER_RUNTIME_DIR="{bed}/$host" XDG_DATA_HOME="{bed}/$host/share"
cat | sh -c "${{@: -1}}" | cat
"""


class Logins:
    """The program, and the hosts' folders."""

    def __init__(self, bed: Path):
        self.bed = bed
        self.program = bed / "ssh"
        self.program.write_text(_SSH.format(bed=bed, passphrase=PASSPHRASE))
        self.program.chmod(0o700)

    def of(self, pid: int) -> list[psutil.Process]:
        """The logins that a process has."""
        found = []
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                found += [child] if str(self.program) in child.cmdline() else []
        return found

    def cut(self, pid: int) -> None:
        """Break the logins of a process."""
        for login in self.of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(login.pid, signal.SIGKILL)
