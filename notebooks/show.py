"""A notebook in a terminal: run it from top to bottom and print each cell with what it answers, as it comes.

::

    python notebooks/show.py notebooks/01_first_cell.ipynb

The exit code is 0 when every cell ran, 1 when one failed (its traceback is printed), 2 for a file that is no notebook.
With ``--save`` before the name, the outputs are kept in the file if every cell ran; else it is not changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

CELL_TIMEOUT = 300
"""Seconds until a cell counts as failed."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ThisPython(AsyncKernelManager):
    """Starts kernels of the interpreter that runs this, whatever kernels are installed, over ipc."""

    def __init__(self, **traits: Any):
        super().__init__(
            **traits,
            # Where no folder has kernels in it, the name python3 means this interpreter.
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",
            # The sockets lie beside this file; without it they would lie in whatever folder a process is in.
            connection_file=os.path.join(jupyter_runtime_dir(), f"kernel-{uuid.uuid4()}.json"),
        )


class Show(NotebookClient):
    """A notebook client that prints. A live display, which may still change, is printed when its cell has ended."""

    def __init__(self, nb: nbformat.NotebookNode, folder: Path):
        super().__init__(
            nb,
            kernel_name="python3",
            kernel_manager_class=ThisPython,
            timeout=CELL_TIMEOUT,
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
        )
        self._printed: list[nbformat.NotebookNode] = []
        self._at_line_start = True
        self.on_cell_start = self._print_cell
        self.on_cell_executed = self._print_rest

    def output(
        self, outs: list[Any], msg: dict[str, Any], display_id: str | None, cell_index: int
    ) -> nbformat.NotebookNode | None:
        """Print an output that is final when it arrives."""
        out = super().output(outs, msg, display_id, cell_index)
        if out is not None and not display_id:
            self._printed.append(out)
            self._write(plain(out))
        return out

    def _print_cell(self, cell: nbformat.NotebookNode, **_: Any) -> None:
        self._new_line()
        if cell.cell_type == "markdown":
            self._write(f"\n{cell.source}\n")
        elif cell.cell_type == "code":
            self._write("\n" + "\n".join(f"    {line}".rstrip() for line in cell.source.splitlines()) + "\n\n")

    def _print_rest(self, cell: nbformat.NotebookNode, **_: Any) -> None:
        self._new_line()
        for out in cell.get("outputs", ()):
            if not any(out is printed for printed in self._printed):
                self._write(plain(out))
                self._new_line()
        self._printed.clear()

    def _new_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text if sys.stdout.isatty() else _COLOUR.sub("", text))
            sys.stdout.flush()
            self._at_line_start = text.endswith("\n")


def plain(out: nbformat.NotebookNode) -> str:
    """What an output says in a terminal: its text, its traceback, or the names of its mime types."""
    if out.output_type == "stream":
        return str(out.text)
    if out.output_type == "error":
        return "\n".join(out.traceback or [f"{out.ename}: {out.evalue}"]) + "\n"
    data = out.get("data", {})
    return str(data["text/plain"]) + "\n" if "text/plain" in data else f"[{', '.join(data)}]\n"


def show(path: Path, is_saved: bool = False) -> int:
    """Run the notebook at ``path`` in its own folder, and keep its outputs in it if asked to; the exit code."""
    try:
        nb = nbformat.read(path, as_version=4)
    except (OSError, nbformat.reader.NotJSONError, nbformat.ValidationError) as e:
        print(f"{path} cannot be read as a notebook: {e}", file=sys.stderr)
        return 2
    language = nb.metadata.get("language_info")
    try:
        Show(nb, path.parent.resolve()).execute()
    except CellExecutionError:
        print("\nThis cell failed; its message is above.", file=sys.stderr)
    except (CellTimeoutError, DeadKernelError) as e:
        print(f"\n{e}", file=sys.stderr)
    else:
        if is_saved:
            nb.metadata["language_info"] = language  # the kernel's says which Python ran it
            nb.metadata.pop("widgets", None)  # without a kernel, they would be dead
            nbformat.write(nb, path)
        return 0
    # A cluster outlives its notebook, but nobody will come back to this one.
    subprocess.run([sys.executable, "-m", "jdist", "stop"], timeout=60, check=False)
    return 1


def main() -> int:
    """Run the notebook named on the command line, with clusters of its own."""
    is_saved = "--save" in sys.argv[1:]
    names = [word for word in sys.argv[1:] if word != "--save"]
    if len(names) != 1:
        print("usage: python notebooks/show.py [--save] NOTEBOOK.ipynb", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="jdist-show-") as runtime:
        os.environ["JUPYTER_RUNTIME_DIR"] = runtime  # "jdist stop" then sees no other cluster of this user
        return show(Path(names[0]), is_saved)


if __name__ == "__main__":
    sys.exit(main())
