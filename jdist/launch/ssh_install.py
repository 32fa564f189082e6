"""What makes an environment with jdist on a remote host. The bootstrap there imports it from the wheel it was sent.

It uses the standard library and jdist's own modules that do. While it works, it holds a lock, which ends with its
process. An environment is whole once it has the file `MADE_FROM`; any other is removed. It is made from the interpreter
that runs this, whose packages it sees, and ends early when the login does.
"""

import fcntl
import importlib.metadata
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jdist.wire.processes import die_with_parent

MADE_FROM = "jdist-made-from"
_DEADLINE = 1500.0  # Seconds for one step.
_LAST_LINES = 6
_SHOWN = ("Collecting", "Downloading", "Installing", "Building")
_CHECK = "import jdist.client.serve"


def install(wheel: str, environment: str, tell: Callable[[str], object], naming: str) -> str:
    """The environment's interpreter. ``tell`` gets lines of progress; ``naming`` says how another Python is named.

    Raises OSError, ValueError with the reason.
    """
    if importlib.util.find_spec("torch") is None:
        raise ValueError(
            f"{sys.executable} has no torch, and nothing was installed: {sys.executable} -m pip install torch there, "
            f"or name a Python that has it: {naming}"
        )
    folder = Path(environment)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another login makes {folder} now; log in again when it has finished") from None
        shutil.rmtree(folder, ignore_errors=True)
        try:
            return _make(wheel, folder, tell)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _make(wheel: str, folder: Path, tell: Callable[[str], object]) -> str:
    tell(f"making {folder} with {sys.executable}, for jdist")
    # The interpreter's own pip is used if it has one: ensurepip may bring a setuptools that is too old for torch.
    bare = ["--without-pip"] if importlib.util.find_spec("pip") else []
    _run([sys.executable, "-m", "venv", "--system-site-packages", *bare, str(folder)], tell)
    python = str(folder / "bin" / "python")
    if sys.prefix != sys.base_prefix:  # an environment itself, whose packages a new one does not see by itself
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        seen = [p for p in sys.path if p.startswith(sys.prefix + os.sep) and os.path.isdir(p)]
        lines = [f"import site; site.addsitedir({path!r})\n" for path in seen]
        (folder / "lib" / version / "site-packages" / "jdist-made-from.pth").write_text("".join(lines))
    torch = folder / "constraints.txt"  # no other torch than the one that is there
    torch.write_text(f"torch=={importlib.metadata.version('torch')}\n")
    options = ["--no-user", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-c", str(torch)]
    _run([python, "-m", "pip", "install", *options, wheel], tell)
    _run([python, "-P", "-c", _CHECK], tell)
    (folder / MADE_FROM).write_text(sys.executable)
    return python


def _run(words: Sequence[str], tell: Callable[[str], object]) -> None:
    """Run a step. Raises ValueError with its last lines, or OSError when the login has ended."""
    step = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 — no other thread runs here
    )
    try:
        said = _follow(step, tell)
    finally:
        if step.poll() is None:
            os.killpg(step.pid, signal.SIGKILL)
        step.wait()
    if step.returncode:
        lines = [line for line in said.splitlines() if line.strip()][-_LAST_LINES:]
        raise ValueError(f"{' '.join(words[1:4])} failed, and what it had made was removed:\n" + "\n".join(lines))


def _follow(step: "subprocess.Popen[bytes]", tell: Callable[[str], object]) -> str:
    """What the step writes until it ends."""
    assert step.stdout is not None
    output = step.stdout.fileno()
    until, said, told = time.monotonic() + _DEADLINE, b"", 0
    while True:
        ready, _, _ = select.select([output, 0], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise ValueError(f"{' '.join(step.args)} has not ended after {_DEADLINE:.0f} s")  # type: ignore[arg-type]
        if 0 in ready:  # nothing is sent now
            raise OSError("the login has ended")
        piece = os.read(output, 1 << 16)
        if not piece:
            step.wait(_LAST_LINES)
            return said.decode(errors="replace")
        said += piece
        whole = said.rfind(b"\n") + 1
        for line in said[told:whole].decode(errors="replace").splitlines():
            if line.startswith(_SHOWN):
                tell(line)
        told = max(told, whole)
