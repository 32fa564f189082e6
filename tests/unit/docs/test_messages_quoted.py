"""What the documentation quotes as a message of jdist's is one: its words stand so in the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "troubleshooting.md"
GAP = "…"


def literals() -> list[str]:
    """Every text in the code but docstrings; what is put into it when the code runs is a gap."""
    found = []
    for path in (ROOT / "jdist").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if id(node) in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else GAP for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def quoted() -> list[str]:
    """The first column of the page's tables."""
    return re.findall(r"^\| `([^`]+)`", PAGE.read_text(), re.MULTILINE)


def is_said(message: str, texts: list[str]) -> bool:
    parts = message.split(GAP)
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    longest = max(parts, key=len)
    return any(longest in text and pattern.search(text) for text in texts)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    found = literals()
    assert len(found) > 5000
    return found


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_one(message: str, texts: list[str]) -> None:
    assert len(re.sub(r"\W", "", message)) >= 4, "too little to be looked for"
    assert is_said(message, texts), message


def test_there_are_enough_of_them_and_others_are_not_found(texts: list[str]) -> None:
    assert len(quoted()) > 40
    assert not is_said("the flux capacitor of rank … is empty", texts)
