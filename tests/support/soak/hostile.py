"""Hostile cells: what a rank runs before its part of a correct program, or behind it, and what that may cost.

None of it may cost more: no other name, no other rank, and never the end of the cell.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hostile:
    """Lines of a cell. ``raises``: the rank fails at them, rightly; ``ends``: its process ends, with its names."""

    lines: str
    is_behind: bool = False
    raises: bool = False
    ends: bool = False
    forgets: bool = False
    """It removes names of its own rank, rightly."""
    tidies: str = ""
    """Run on the rank afterwards."""


_CLASS = "class _H:\n    def __init__(self): self.x = 1\n    def "
_CRASH = "import os; os.abort()"

KINDS: dict[str, Hostile] = {
    "a huge line": Hostile("print('x' * 10_000_000)"),
    "much output": Hostile("for _i in range(20_000): print(_i, 'a line of a hundred characters' * 3)"),
    "lone surrogates": Hostile("print('a\\ud800b'); import sys; print('\\udcff', file=sys.stderr)"),
    "large displays": Hostile(
        "from IPython.display import HTML, clear_output, display\n"
        "for _i in range(30):\n    clear_output(wait=True)\n    display(HTML('x' * 2_000_000))"
    ),
    "a display that cannot be packed": Hostile(
        "from IPython.display import display; display({'application/json': {'n': 2**70}}, raw=True)", is_behind=True
    ),
    "a display that raises": Hostile(
        f"{_CLASS}_repr_html_(self): raise SystemExit(3)\ndisplay(_H())", is_behind=True, raises=True
    ),
    "metrics that are no text": Hostile("jdist.log(**{'x\\ud800': 1.0})"),
    "a huge error": Hostile("raise ValueError('x' * 35_000_000)", is_behind=True, raises=True),
    "an error whose text raises": Hostile(
        "class _E(Exception):\n    def __str__(self): raise SystemExit(1)\nraise _E()", is_behind=True, raises=True
    ),
    "an error whose text takes long": Hostile(
        "class _E(Exception):\n    def __str__(self):\n        import time; time.sleep(1); return 'slow'\nraise _E()",
        is_behind=True,
        raises=True,
    ),
    "SystemExit": Hostile("raise SystemExit(7)", is_behind=True, raises=True),
    "no descriptors": Hostile(
        "import os\n_held = []\ntry:\n    while True: _held.append(os.open('/dev/null', 0))\nexcept OSError: pass",
        is_behind=True,
        tidies="import os\nfor _f in globals().pop('_held', ()): os.close(_f)",
    ),
    "a child that lives on": Hostile("import subprocess; subprocess.Popen(['sleep', '3'])"),
    "no names": Hostile("globals().clear()", is_behind=True, forgets=True),
    "another default device": Hostile(
        "torch.set_default_device('meta')", is_behind=True, tidies="torch.set_default_device(None)"
    ),
    "a dead proxy": Hostile("import weakref\n_p = weakref.proxy(type('_G', (), {})())", tidies="_p = None"),
    "a crash": Hostile(_CRASH, ends=True),
} | {
    f"a crash with a name that {what}": Hostile(f"{_CLASS}{code}\nhostile = _H()\n{_CRASH}", ends=True)
    for what, code in {
        "raises as it is saved": "__reduce__(self): raise SystemExit(2)",
        "has no end": "__reduce_ex__(self, _): import itertools; return list, (), None, itertools.repeat('x' * 9999)",
        "exits as it is loaded": "__setstate__(self, _): raise SystemExit(2)",
        "ends the process as it is loaded": "__setstate__(self, _): import os; os._exit(3)",
        "waits for ever as it is loaded": "__setstate__(self, _): import time; time.sleep(10**6)",
    }.items()
}

SETUP = "import jdist\nfrom jdist.worker.session import to_memory as _attempt; _attempt._LONGEST = 12.0; del _attempt"
