"""LauncherForm: what a form that starts a cluster asks for a launcher, as data, so that a browser can draw it."""

from typing import Literal

from msgspec import Struct


class LauncherOption(Struct, frozen=True):
    """An option among the user's words after ``--``, with a field of its own."""

    flag: str  # ``--partition``; its value is the next word.
    label: str
    example: str = ""
    note: str = ""


class LauncherForm(Struct, frozen=True):
    """The fields besides those that every launcher has: ranks per node, backend and name."""

    hosts: Literal["", "optional", "required"] = ""  # Whether hosts can be named; if required, they say how many nodes.
    nodes: str = "1"  # How many nodes there are where the user leaves that open.
    options: tuple[LauncherOption, ...] = ()
    arguments: str = "further arguments of the launcher"  # What other words it takes; "": none.
    cannot_add: str = ""  # Why no node can be added with it to a running cluster; "" if that is possible.
    problem: str = ""  # Why this launcher cannot be used here; "" if nothing is known against it.
