"""Installed code: the files of Python, of installed packages, of torch and of jdist, as against the user's own code."""

import functools
import os
import re
import site
import sysconfig
from pathlib import Path

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
