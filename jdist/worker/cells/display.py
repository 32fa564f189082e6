"""What a rank's libraries display: as in a notebook's own kernel.

To libraries, a rank looks like a notebook's kernel for what they display, and like what torchrun starts in a terminal
for everything else.

Libraries look at different facts to find out whether they run in a notebook, at a prompt or in a launched process, and
choose widgets, HTML or text, or refuse distributed training, by the answer. Displays and widgets
appear in the notebook as those of its own kernel do, but progress bars stay text. Each of these facts is set here:

=====================================================  ==========================================================
``sys.ps1``                                            Lightning (Fabric and Trainer), matplotlib
``"IPKernelApp" in get_ipython().config``              transformers, enlighten, and tqdm before 4.70
``type(get_ipython()).__name__``, or of its bases      plotly, hydra and all others, which are told the truth, except
                                                       rich, huggingface_hub, ray and halo
``"ipykernel.zmqshell" in sys.modules``                tqdm, whose two modules for notebooks are replaced instead
``sys.stdout.isatty()``                                rich, huggingface_hub: whether a bar may be drawn over
``os.get_terminal_size(sys.stdout.fileno())``          tqdm, rich, ``shutil``
``COLUMNS`` and ``LINES`` in the environment           rich, ``shutil``, which prefer them to the terminal's size
=====================================================  ==========================================================

docs/libraries.md lists what each library makes of them. torchrun's environment is set with each generation
(:mod:`jdist.worker.groups.formation`). The notebook shows the ranks' text as a terminal would
(:mod:`jdist.notebook.output.terminal_emulator`).

A value that cannot be formatted says so in a line, where IPython would publish a traceback that no front end shows. A
text of many megabytes is cut before it travels.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets.config import Config

from jdist.wire.values.frames import shortened
from jdist.worker.cells.user_code import described
from jdist.worker.compat.ipykernel import check_format, is_format, unguarded_format, write_to_a_terminal

_WIDGET_USERS = {"halo", "huggingface_hub", "ray", "rich"}
"""Packages that use widgets where the shell's class has the name of a notebook's, and text elsewhere; halo registers a
callback, which fails after each cell.
"""
_COLUMNS, _LINES = 100, 40  # The size of the terminal: what fits into a notebook's output.


def set_up(shell: Any) -> None:
    """Have this process look like a launched one; once, before user code runs and before it imports anything."""
    remove_prompts()
    shell.config = _RankConfig(shell.config)
    _name_by_asker(ZMQInteractiveShell)
    for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
        write_to_a_terminal(stream, fd)
    os.get_terminal_size = _with_size(os.get_terminal_size)
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)  # of the terminal in which the cluster was started
    sys.meta_path.insert(0, _TextBars())


def remove_prompts() -> None:
    """Take away what ``code.interact`` and embedded shells leave behind, too: the sign of a process at a prompt."""
    for name in ("ps1", "ps2"):
        vars(sys).pop(name, None)


def _name_by_asker(shell: Any) -> None:
    """Have the class of the shell give its name to everyone but ``_WIDGET_USERS``."""
    metaclass: Any = type(shell)

    class Named(metaclass):  # type: ignore[misc]
        @property
        def __name__(self) -> str:
            asker = str(sys._getframe(1).f_globals.get("__name__"))
            return "RankShell" if asker.partition(".")[0] in _WIDGET_USERS else str(super().__name__)

    shell.__class__ = Named


def _with_size(original: Callable[[int], os.terminal_size]) -> Callable[..., os.terminal_size]:
    def get_terminal_size(fd: int = 1, /) -> os.terminal_size:
        try:
            size = original(fd)
        except OSError:
            if fd not in {1, 2}:
                raise
            size = os.terminal_size((0, 0))
        return size if size.columns else os.terminal_size((_COLUMNS, _LINES))  # a new pseudo-terminal has no size

    return get_terminal_size


class _RankConfig(Config):
    """Answers no to ``"IPKernelApp" in get_ipython().config``."""

    def __contains__(self, key: Any) -> bool:
        return key != "IPKernelApp" and bool(super().__contains__(key))


class _TextBars(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads tqdm's two modules for notebooks with its bar of text in the place of that of widgets."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name in ("tqdm.notebook", "tqdm.autonotebook"):
            return importlib.util.spec_from_loader(name, self)
        return None

    def exec_module(self, module: ModuleType) -> None:
        std: Any = importlib.import_module("tqdm.std")
        if module.__name__ == "tqdm.autonotebook":
            vars(module).update(tqdm=std.tqdm, trange=std.trange, __all__=["tqdm", "trange"])
            return
        bar = _notebook_bar(std.tqdm)

        def count(*args: Any, **kwargs: Any) -> Any:
            return bar(range(*args), **kwargs)

        vars(module).update(
            tqdm=bar,
            tqdm_notebook=bar,
            trange=count,
            tnrange=count,
            __all__=["tqdm_notebook", "tnrange", "tqdm", "trange"],
        )


def _notebook_bar(std: Any) -> Any:
    """tqdm's bar of text, with what only the one for notebooks accepts."""

    class NotebookBar(std):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any):
            kwargs.pop("display", None)
            if not str(kwargs.get("ncols") or 0).isdecimal():
                del kwargs["ncols"]  # "100%" of a notebook's width
            kwargs["disable"] = bool(kwargs.get("disable"))
            super().__init__(*args, **kwargs)

        def _repr_pretty_(self, printer: Any, _: bool) -> None:
            printer.text(str(self))

        @property
        def container(self) -> Any:
            """What ``display=False`` leaves to be displayed."""
            return self

    return NotebookBar


_LONGEST = 1_000_000  # Characters of a value's text that travel.


def adapt_formatters(shell: Any) -> None:
    """Replace the formatters of an ipykernel's shell; before user code runs."""
    own = shell.display_formatter
    own.formatters = {kind: _telling(each) for kind, each in own.formatters.items()}
    own.ipython_display_formatter = _telling(own.ipython_display_formatter)
    own.mimebundle_formatter = _telling(own.mimebundle_formatter)


def _telling(formatter: Any) -> Any:
    kind: Any = type(formatter)
    format_value = unguarded_format(kind)
    is_text = formatter.format_type == "text/plain" and formatter.print_method == "_repr_pretty_"

    class Formatter(kind):  # type: ignore[misc]
        def __call__(self, obj: Any, *args: Any, **options: Any) -> Any:
            try:
                made = format_value(self, obj, *args, **options)
            except NotImplementedError:  # a class's way to say that it has no such form
                made = None
            except Exception as e:
                made = _failed(self, obj, f"raised {described(e)}")
            if not is_format(self, made):
                made = _failed(self, obj, f"returned {type(made).__name__}")
            return check_format(self, _shortened(made) if is_text else made, obj)

    def _failed(self: Any, obj: Any, what: str) -> str | None:
        if is_text:
            return f"<{type(obj).__name__}: repr() {what}>"
        print(f"jdist: {type(obj).__name__}.{self.print_method}() {what}", file=sys.stderr)
        return None

    return Formatter(parent=formatter.parent, enabled=formatter.enabled)


def _shortened(text: Any) -> Any:
    return shortened(text, _LONGEST) if isinstance(text, str) else text
