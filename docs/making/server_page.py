"""Server page: the table of routes for the page of the Jupyter server, from the docstring of their module."""

from __future__ import annotations

import inspect

from jdist.server import routes

ASKED = "<!-- routes -->"


def table() -> str:
    """The routes as the module's own docstring lists them."""
    text = inspect.getdoc(routes) or ""
    _, _, rest = text.partition("::\n")
    listed, _, after = rest.strip("\n").partition("\n\n")
    return f"```text\n{inspect.cleandoc(listed)}\n```\n\n{after.replace('``', '`')}"
