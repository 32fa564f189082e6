"""What tests of the wire share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from jdist.wire.values.segments import sweep


@pytest.fixture
def cluster() -> Iterator[str]:
    """A cluster's name; fails the test that leaves one of its segments behind."""
    name = f"t{secrets.token_hex(4)}"
    yield name
    assert sweep(name) == []
