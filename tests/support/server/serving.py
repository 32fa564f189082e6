"""A real jupyter server with the extension, under a base URL as JupyterHub gives."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.lab.browser import LONG, TOKEN, Browser
from support.listening import end, listens
from support.waits import eventually

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CONFIG = """
import sys
sys.path.insert(0, {here!r})
from guard import Guard
c.ServerApp.authorizer_class = Guard
c.Jdist.max_ranks = 8
c.Jdist.allowed_launchers = ["local", "ssh"]
c.Jdist.default_args = {{"backend": "gloo", "idle_timeout": 60.0, "timeout": 60.0}}
"""


class Server:
    """The process, and what it leaves in its folder."""

    def __init__(self, bed: Path, runtime: Path, environment: Mapping[str, str] = {}):
        self.bed = bed
        (bed / "jupyter_server_config.py").write_text(CONFIG.format(here=str(HERE)))
        everything = {
            **os.environ,
            "JUPYTER_CONFIG_DIR": str(bed),
            # What the wheel puts beside Python, here from the tree.
            "JUPYTER_CONFIG_PATH": str(ROOT / "etc"),
            "JDIST_TEST_BED": str(bed),
            "JUPYTER_TOKEN": TOKEN,
            **environment,
        }
        self._log = (bed / "log").open("wb")
        options = ["--port=0", "--base_url=/user/alice/", "--no-browser", "--allow-root", f"--ServerApp.root_dir={bed}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *options],
            env=everything,
            cwd=bed,
            stdout=self._log,
            stderr=self._log,
        )
        self._info = runtime / f"jpserver-{self.process.pid}.json"
        assert eventually(lambda: listens(self._info, LONG) or self.process.poll() is not None, LONG), self.said()
        assert self.process.poll() is None, self.said()
        self.browser = Browser(json.loads(self._info.read_text())["url"])

    def said(self) -> str:
        return (self.bed / "log").read_text()[-6000:]

    def cookie(self) -> str:
        """Of somebody who has logged in."""
        import urllib.request

        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(f"{self.browser.url}api/status?token={TOKEN}", timeout=LONG):
            pass
        jar = next(h.cookiejar for h in opener.handlers if isinstance(h, urllib.request.HTTPCookieProcessor))
        return "; ".join(f"{c.name}={c.value}" for c in jar)

    @contextlib.contextmanager
    def denying(self, *actions: str) -> Iterator[None]:
        (self.bed / "denied").write_text(" ".join(actions))
        try:
            yield
        finally:
            (self.bed / "denied").unlink()

    def end(self) -> None:
        with self._log:
            end(self.process, self.said)
