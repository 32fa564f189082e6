"""Code: paths and links of a tree stay in it, whoever sends them."""

from __future__ import annotations

import pytest

from jdist.core.errors import UsageError
from jdist.core.messages.code import SourceTree, TreeEntry, is_inside, leads_inside

DIGEST = bytes(32)


@pytest.mark.parametrize("path", ["a", "a/b", "a.b/c d", "...", "..a", "-r"])
def test_paths_that_stay(path: str) -> None:
    assert is_inside(path)


@pytest.mark.parametrize(
    "path", ["", ".", "..", "../a", "a/../b", "a/../../b", "/a", "a//b", "a/", "./a", "a\0b", "a/.."]
)
def test_paths_that_do_not(path: str) -> None:
    assert not is_inside(path)
    with pytest.raises(UsageError, match="is no path in t"):
        SourceTree("t", (TreeEntry(path, 0, DIGEST),)).check()


@pytest.mark.parametrize(("path", "target"), [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d"), ("a", "x/../b")])
def test_links_that_stay(path: str, target: str) -> None:
    assert leads_inside(path, target)
    SourceTree("t", (TreeEntry(path, 0, b"", target=target),)).check()


@pytest.mark.parametrize(("path", "target"), [("a", "../b"), ("a/b", "../../c"), ("a", "/etc/passwd"), ("a", "b\0")])
def test_links_that_lead_out(path: str, target: str) -> None:
    assert not leads_inside(path, target)
    with pytest.raises(UsageError, match="leads out of t"):
        SourceTree("t", (TreeEntry(path, 0, b"", target=target),)).check()


@pytest.mark.parametrize("name", ["", "..", "a/b", "/a", "."])
def test_names_that_are_no_folder_of_their_own(name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a folder"):
        SourceTree(name, ()).check()


def test_the_staging_folder_is_nobodys_and_a_file_has_a_digest() -> None:
    with pytest.raises(UsageError, match="is no path"):
        SourceTree("t", (TreeEntry(".jdist-staging/x", 0, DIGEST),)).check()
    with pytest.raises(UsageError, match="without a digest"):
        SourceTree("t", (TreeEntry("a", 1, b"short"),)).check()
