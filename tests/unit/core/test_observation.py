"""Agreement: in which calls ranks must be alike, and in what they may differ."""

from __future__ import annotations

import pytest
from msgspec import structs

from jdist.core.messages.observation import Call, call_signature

SUM = Call("all_reduce", "0", 3, ((4, 2),), ("float32",), "op=SUM")
SPLIT = Call("all_to_all_single", "0", 3, ((4,),), ("float32",), "splits=[1, 3]→[2, 2]")
UNEVEN = Call("all_gather", "0", 3, ((4,),), ("float32",))


@pytest.mark.parametrize(
    ("call", "other"),
    [
        (SUM, {"op": "all_gather_into_tensor"}),
        (SUM, {"dtypes": ("int32",)}),
        (SUM, {"shapes": ((4, 4),)}),
        (SUM, {"detail": "op=MAX"}),
        (UNEVEN, {"dtypes": ("int32",)}),
        (Call("broadcast", "0", 1, ((4,),), ("float32",), "src=0"), {"detail": "src=1"}),
        (Call("gather", "0", 1, ((4,),), ("float32",), "dst=0"), {"shapes": ((5,),)}),
    ],
)
def test_calls_that_do_not_fit(call: Call, other: dict[str, object]) -> None:
    assert call_signature(call) != call_signature(structs.replace(call, **other))


@pytest.mark.parametrize(
    ("call", "other"),
    [
        (SUM, {"shapes": ((8,),)}),  # the numbers of the elements are what counts
        (SUM, {"line": 7, "started": 3.0, "ended": 4.0, "number": 4}),
        (UNEVEN, {"shapes": ((5,),)}),  # NCCL takes it
        (SPLIT, {"shapes": ((7,),), "detail": "splits=[3, 4]→[3, 4]"}),
        (Call("gather_object", "0", 1, detail="dst=0"), {"shapes": ((5,),)}),
    ],
)
def test_calls_that_fit(call: Call, other: dict[str, object]) -> None:
    assert call_signature(call) == call_signature(structs.replace(call, **other))
