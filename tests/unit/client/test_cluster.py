"""Signatures: Cluster is AsyncCluster, blocking: the same names, taking the same arguments, saying the same."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from jdist.client.cluster import AsyncCluster, Cluster

ONLY_ASYNC = {
    "link",  # the connection and what is built on it live on the loop
    "watch",
    "observe",
    "is_following",  # for front ends
    "part",  # delegates of either class find their part there
}
ONLY_BLOCKING = {"asynchronous", "panel"}


def public(cls: type) -> dict[str, Any]:
    return {n: inspect.getattr_static(cls, n) for n in dir(cls) if not n.startswith("_")}


SHARED = sorted(set(public(AsyncCluster)) - ONLY_ASYNC)
ATTRIBUTES = {n for n in vars(AsyncCluster()) if not n.startswith("_")}


def test_the_public_names_are_the_same() -> None:
    assert set(public(Cluster)) - ONLY_BLOCKING == set(SHARED) | ATTRIBUTES
    assert set(public(AsyncCluster)) >= ONLY_ASYNC, "an exception that is none any more"


@pytest.mark.parametrize("name", SHARED)
def test_each_is_the_same_kind_of_thing(name: str) -> None:
    one, other = public(AsyncCluster)[name], public(Cluster)[name]
    assert isinstance(one, property) == isinstance(other, property)
    assert isinstance(one, classmethod) == isinstance(other, classmethod)
    if not isinstance(one, property):
        assert callable(getattr(AsyncCluster, name))
        assert not inspect.iscoroutinefunction(getattr(Cluster, name))


@pytest.mark.parametrize("name", [n for n in SHARED if callable(getattr(AsyncCluster, n))])
def test_each_takes_the_same_arguments(name: str) -> None:
    def parameters(cls: type) -> list[tuple[str, Any, Any]]:
        found = inspect.signature(getattr(cls, name)).parameters.values()
        return [(p.name, p.kind, p.default) for p in found]

    assert parameters(Cluster) == parameters(AsyncCluster)


@pytest.mark.parametrize("name", [n for n in SHARED if callable(getattr(AsyncCluster, n))])
def test_each_has_a_docstring(name: str) -> None:
    assert (getattr(Cluster, name).__doc__ or "").strip()
