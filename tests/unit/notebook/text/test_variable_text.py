"""What %dist show shows of a value: a table by rank, pictures, and how its elements are distributed."""

from __future__ import annotations

from typing import Any

from jdist.notebook.text.cluster_text import value_bundle

NOTHING = dict.fromkeys(("shape", "nbytes", "length", "mean", "std", "norm", "nan_count", "thumb"))


def described(counts: list[int] | None = None, **known: Any) -> dict[str, Any]:
    found = {**NOTHING, "type": "Tensor", "dtype": "float32", "device": "cpu", "placement": "", "detail": ""}
    found |= {"sampled": False, **{key: each for key, each in known.items() if key not in ("nan", "positive_infinity")}}
    if counts is not None:
        others = {"nan": 0, "negative_infinity": 0, "positive_infinity": 0, "outside": 0, **known}
        found["histogram"] = {"low": -1.0, "high": 1.0, "counts": counts, **others}
    return found


def test_ranks_with_equal_contents_are_together() -> None:
    found = {rank: described([1, 2] if rank < 2 else [2, 1]) for rank in range(4)}
    text = value_bundle(found)["text/plain"].partition("\n\n")[2]
    assert text.splitlines() == [
        "ranks  values from -1 to 1 in 2 bins",
        "0-1    │▄█│                           3 elements",
        "2-3    │█▄│                           3 elements",
    ]


def test_what_is_in_no_bin_is_told() -> None:
    found = {0: described([1, 2], nan=4, positive_infinity=1), 1: described([0, 0], nan=9), 2: described(sampled=True)}
    text = value_bundle(found)["text/plain"]
    assert "│▄█│" in text
    assert "3 elements, 4 NaN, 1 inf" in text
    assert "0 elements, 9 NaN" in text
    assert "of a sample" not in text


def test_without_elements_there_is_a_table_only() -> None:
    bundle = value_bundle({0: described(), 1: {"error": "there is no name 'w' on this rank"}})
    assert "│" not in bundle["text/plain"]
    assert "<svg" not in bundle["text/html"]
    assert "there is no name 'w' on this rank" in bundle["text/plain"]
