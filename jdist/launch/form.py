"""LauncherForm: what a form that starts a cluster asks for a launcher, as data, so that a browser can draw it."""

from typing import Literal

from msgspec import Struct

# Patterns of options' values, as Python and JavaScript understand them alike.
WORD = r"\S+"
COUNT = r"[1-9]\d{0,5}"
AMOUNT = r"\d{1,6}(\.\d{1,4})?"
TIME_LIMIT = r"(\d+-)?\d+(:\d{1,2}){0,2}|UNLIMITED|unlimited|INFINITE|infinite"  # sbatch's
TYPED_COUNT = r"([\w.-]+:)?\d+(,[\w.-]+:\d+)*"  # ``4``, ``a100:2``, ``a100:2,v100:1``


class LauncherOption(Struct, frozen=True):
    """An option among the user's words after ``--``, with a field of its own."""

    flag: str  # ``--partition``; its value is the next word.
    label: str
    example: str = ""
    note: str = ""
    pattern: str = ""  # A regular expression that the whole value matches; "": anything.


class LauncherForm(Struct, frozen=True):
    """The fields besides those that every launcher has: ranks per node, backend and name."""

    hosts: Literal["", "optional", "required"] = ""  # Whether hosts can be named; if required, they say how many nodes.
    nodes: str = "1"  # How many nodes there are where the user leaves that open.
    options: tuple[LauncherOption, ...] = ()
    arguments: str = "further arguments of the launcher"  # What other words it takes; "": none.
    cannot_add: str = ""  # Why no node can be added with it to a running cluster; "" if that is possible.
    problem: str = ""  # Why this launcher cannot be used here; "" if nothing is known against it.
