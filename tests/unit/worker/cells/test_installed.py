"""Which files are installed, and which are the user's own."""

from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path

import pytest
import torch

import jdist
from jdist.worker.cells.user_code import installed_path, path_of_shown

PYTHON = Path(os.__file__).parent


@pytest.mark.parametrize(
    ("file", "path"),
    [
        (torch.nn.modules.linear.__file__, "torch/nn/modules/linear.py"),
        (json.decoder.__file__, "json/decoder.py"),
        (jdist.__file__, "jdist/__init__.py"),
        (pytest.__file__, "pytest/__init__.py"),
        (f"{sysconfig.get_paths()['stdlib']}/this.py", "this.py"),
        ("/home/me/project/.venv/lib/python3.12/site-packages/einops/layers/torch.py", "einops/layers/torch.py"),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", "yaml/loader.py"),
        ("<frozen importlib._bootstrap>", "importlib._bootstrap"),
        ("/home/me/torch/train.py", ""),
        ("/home/me/jdist/train.py", ""),
        (__file__, ""),
        ("<string>", ""),
    ],
)
def test_installed_files_have_a_path_in_their_folder(file: str, path: str) -> None:
    assert installed_path(file) == path


@pytest.mark.parametrize(
    ("frame", "path"),
    [
        ("File /v/lib/python3.11/site-packages/a/b.py:12, in C.f(self)\n   10 x\n", "a/b.py"),
        ("\x1b[36mFile \x1b[39m\x1b[32m/v/lib/python3.11/site-packages/a/b.py:12\x1b[39m, in f(x)", "a/b.py"),
        ("  File /v/site-packages/a/b.py:12 in f\n    x\n", "a/b.py"),
        ('  File "/v/site-packages/a/b.py", line 12, in f\n    x\n', "a/b.py"),
        (f"File ~/{PYTHON.name}/json/decoder.py:3, in f()", "json/decoder.py"),
        ("File ~/train.py:12, in f(x)", ""),
        ("Cell In[5], line 4\n 4 x", ""),
        ("ValueError: File /v/site-packages/a/b.py:12, in f", ""),
        ("", ""),
    ],
)
def test_a_shown_frame_is_of_its_file(frame: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(PYTHON.parent))
    assert path_of_shown(frame) == path
