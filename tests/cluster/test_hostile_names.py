"""Names whose own code fails, waits for ever or exits as they are handed over: the others are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jdist
from support.cells import ALL_REDUCE
from support.waits import eventually

Start = Callable[..., jdist.Cluster]

HOSTILE = {
    "exits as it is loaded": "def __setstate__(self, state):\n        import sys; sys.exit('no')",
    "waits for ever as it is loaded": "def __setstate__(self, state):\n        import time; time.sleep(10**6)",
    "ends the process as it is loaded": "def __setstate__(self, state):\n        import os; os._exit(3)",
    "has no end": "def __reduce_ex__(self, protocol):\n"
    "        import itertools; return list, (), None, itertools.repeat('x' * 100_000)",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_other_names_are_kept(fresh_cluster: Start, kind: str) -> None:
    own = fresh_cluster(2, form_timeout=60.0)
    own.run("from jdist.worker.session import to_memory; to_memory._LONGEST = 6.0; del to_memory")
    own.run("before, kept = torch.arange(3.0), rank + 1")
    own.run(
        f"class Hostile:\n    def __init__(self): self.x = 1\n    {HOSTILE[kind]}\nhostile, after = Hostile(), [rank]"
    )
    told: list[str] = []
    own.asynchronous.watch(lambda m: told.append(getattr(m, "text", "")))
    own.run("import os; os.abort()", [1], check=False)
    assert eventually(lambda: own.facts.phase == "ready", 60)
    assert own.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}
    assert own.run("kept, after, before.sum().item()", timeout=60).values == {r: (r + 1, [r], 3.0) for r in (0, 1)}
    assert own.run("'hostile' in globals()").values == {0: True, 1: False}
    assert any("hostile" in text for text in told), told


def test_a_rank_that_has_used_up_its_descriptors_keeps_its_names(fresh_cluster: Start) -> None:
    own = fresh_cluster(2)
    own.run("kept = rank + 1")
    own.run(
        "import os\nheld = []\ntry:\n    while True: held.append(os.open('/dev/null', 0))\nexcept OSError: pass", [1]
    )
    own.run("import os; os.abort()", [1], check=False)
    assert eventually(lambda: own.facts.phase == "ready", 60)
    assert own.run("kept", timeout=60).values == {0: 1, 1: 2}
