"""Examples: the configurations that a page of the documentation shows, as files."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "jupyterhub.md"


def example(name: str) -> str:
    """The page's code block that is called ``name``."""
    found = re.findall(rf'^```python title="{re.escape(name)}"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"{PAGE} has {len(found)} blocks called {name}, where one is expected")
    return str(found[0])
