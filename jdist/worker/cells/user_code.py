"""Tell the user's code from installed code, and call it guarded.

Installed code is the files of Python, of installed packages, of torch and of jdist.

Guarded calls are those outside of a cell's own lines, such as a value's ``__reduce__`` after its cell: whatever the
user's code raises ends there, SystemExit included, and an interrupt may end it, too.
"""

import functools
import os
import re
import site
import sysconfig
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import TypeVar

import torch

import jdist

_PATHS = sysconfig.get_paths()
_FOLDERS = {_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_FOLDERS |= {*site.getsitepackages(), site.getusersitepackages()}
_PACKAGES = tuple(str(Path(package.__file__ or "").parent) for package in (torch, jdist))  # perhaps in a folder of code
_PACKAGE_FOLDER = re.compile(r".*/(?:site|dist)-packages/")
_FROZEN = re.compile(r"<frozen (.+)>")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_SHOWN_FRAME = re.compile(r'\s*File "?(.+?)"?(?:, line |:)\d')

OWN = f"{_PACKAGES[1]}/"  # The folder of jdist.


@functools.lru_cache(maxsize=4096)
def installed_path(file: str) -> str:
    """A file's path in the folder that it is installed in, ``torch/nn/functional.py``; "" for the user's own code."""
    if found := _FROZEN.fullmatch(file) or _PACKAGE_FOLDER.match(file):
        return found[1] if found.re is _FROZEN else file[found.end() :]
    for package in _PACKAGES:
        if file.startswith(f"{package}/"):
            return file[len(os.path.dirname(package)) + 1 :]
    folder = max((each for each in _FOLDERS if file.startswith(f"{each}/")), key=len, default="")
    return file[len(folder) + 1 :] if folder else ""


def path_of_shown(frame: str) -> str:
    """The same for a frame of a traceback, as IPython shows it; "" for what is no frame, such as the message."""
    found = _SHOWN_FRAME.match(_COLOUR.sub("", frame.partition("\n")[0]))
    return installed_path(os.path.expanduser(found[1])) if found is not None else ""


T = TypeVar("T")


def guarded(action: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """What ``action``, a Python function, returned, or what it raised. On the main thread."""
    try:
        return action(), None
    except BaseException as e:  # the rank must be able to reply
        return None, e


_asked: deque[tuple[BaseException, str | None, str]] = deque(maxlen=4)  # The errors whose texts were asked for last.


def text_of(error: BaseException) -> tuple[str | None, str]:
    """The text of an error, or None and the type of what asking for it raised.

    An error is asked once in a cell: its text may take a user's code long, and who has interrupted that does not want
    to wait for it again.
    """
    for asked, text, failure in _asked:
        if asked is error:
            return text, failure
    text, raised = guarded(lambda: str(error))
    _asked.append((error, text, "" if raised is None else type(raised).__name__))
    return _asked[-1][1:]


def forget_texts() -> None:
    """Let go of the errors; their frames refer to what the cell has used."""
    _asked.clear()


def described(error: BaseException) -> str:
    """``ValueError: no``, also where the error's own text cannot be had."""
    text, failure = text_of(error)
    if text is None:
        return f"{type(error).__name__}, whose text raises {failure}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


CODE: CodeType = guarded.__code__
"""An interrupt may raise in what this calls, though not in its own frame."""
