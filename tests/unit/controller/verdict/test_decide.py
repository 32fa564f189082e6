"""Decide: when it is certain that a run cannot finish, and why; and what may still finish, which is left alone.

The tables are worlds of four ranks (see support.rank_snapshots). ``coll(...)`` is a rank in a collective, ``send`` and
``recv`` in one of those, ``store`` in new_group, ``busy`` in Python; ``over`` is one whose part of the run has ended.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import structs

from jdist.controller.verdict.decide import decide, decide_at_deadline, decide_on_loss, is_confirmed
from jdist.controller.verdict.wait_graph import Part, RankSnapshot
from jdist.core.messages.observation import ANY, Activity, Call, Observation
from jdist.notebook.text.remedy_text import command
from support.rank_snapshots import ALL, busy, call, coll, moving, over, received, recv, seen, send, sent, store, world


def test_the_text_as_the_user_sees_it() -> None:
    found = decide(12, world(coll(0), over(1), coll(2), coll(3)))
    assert found is not None
    assert found.text(command) == (
        "● run 12 cannot finish: rank 1 (node 0, h0) has not entered all_reduce #17 [16] float32 of group world\n"
        "  ranks 0, 2-3 wait in all_reduce at cell line 5 (0.6 s)\n"
        "  rank 1 finished the cell 0.6 s ago\n"
        "  → %dist interrupt --run 12  stop run 12 on ranks 0, 2-3; names are kept, the group is re-formed\n"
        "  → %%dist -r 1               let rank 1 join by calling the same collective"
    )


def test_of_a_script_the_text_names_its_lines() -> None:
    waits = structs.replace(coll(0).activity, line=None, source="train.py:8 in main")
    begun = seen(0, "running", waits, {"0": 17})
    found = decide(12, world(begun, over(1, is_script=True), over(2, is_script=True), over(3, is_script=True)))
    assert found is not None
    assert found.details[:2] == (
        "rank 0 waits in all_reduce at train.py:8 in main (0.6 s)",
        "rank 1 finished the script 0.6 s ago",
    )


DIFFERENT = (coll(0, "broadcast"), coll(1), coll(2), coll(3))
EARLIER = {r: (call("broadcast" if r == 2 else "all_reduce", 16, is_done=True), "all_gather") for r in ALL}
EARLIER[2] = (EARLIER[2][0], "barrier")
HALF = (coll(0, "broadcast"), coll(1, "broadcast"), coll(2), coll(3))

CERTAIN = [
    # ------------------------------------------------------------ nobody comes into a collective
    (
        "finished without it",
        world(coll(0), over(1), coll(2), coll(3)),
        "missing",
        (1,),
        "rank 1 (node 0, h0) has not entered",
    ),
    ("raised before it", world(coll(0), coll(1), coll(2), over(3, "failed", note="E: x")), "missing", (3,), "rank 3"),
    (
        "it alone has entered, and the others are over",
        world(coll(0), over(1), over(2), over(3)),
        "missing",
        (0,),
        "only rank 0 (node 0, h0) has entered all_reduce #17",
    ),
    (
        "it alone has entered, and the others are over or in calls of other groups",
        world(coll(0), coll(1, number=3, group="1"), over(2), over(3)),
        "missing",
        (0,),
        "only rank 0",
    ),
    (
        "it waits for its number, and the others are over",
        world(coll(0), coll(1), coll(2, is_expected=True), over(3)),
        "missing",
        (3,),
        "has not entered all_reduce #17",
    ),
    ("two are over", world(coll(0), over(1), coll(2), over(3)), "missing", (1, 3), "ranks 1, 3 have not entered"),
    ("not in the run", world(coll(0), coll(1), seen(2, "free"), seen(3, "free")), "missing", (2, 3), "ranks 2-3"),
    (
        "its process is gone",
        world(coll(0), coll(1), coll(2), RankSnapshot("rank 3 (node 1, h1)", "lost")),
        "missing",
        (3,),
        "rank 3",
    ),
    (
        "one rank waits",
        world(coll(0), over(1), over(2, number=17), over(3, number=17)),
        "missing",
        (1,),
        "#17 [16] float32",
    ),
    (
        "a barrier",
        world(coll(0, "barrier", size=0), over(1), busy(2), busy(3)),
        "missing",
        (1,),
        "barrier #17 of group world",
    ),
    ("others may come, one not", world(coll(0), over(1), busy(2), busy(3)), "missing", (1,), "rank 1"),
    (
        "in a subgroup",
        world(coll(0, number=3, group="1"), over(1), busy(2), busy(3)),
        "missing",
        (1,),
        "#3 [16] float32 of group tp",
    ),
    (
        "a group without a name",
        world(busy(0), busy(1), coll(2, number=1, group="2"), over(3)),
        "missing",
        (3,),
        "of ranks 2-3",
    ),
    (
        "a group that it does not have",
        world(busy(0), over(1), coll(2, number=1, group="3"), busy(3)),
        "missing",
        (1,),
        "dp",
    ),
    (
        "left with an error",
        world(coll(0), coll(1), coll(2), over(3, "failed", number=17, recent=(call(),))),
        "missing",
        (3,),
        "rank 3 (node 1, h1) has left",
    ),
    (
        "behind one that waits elsewhere",
        world(coll(0), coll(1, number=2, group="3"), over(2), coll(3)),
        "missing",
        (2,),
        "rank 2",
    ),
    (
        "elsewhere in another run",
        world(coll(0, part="elsewhere"), over(1), coll(2), coll(3)),
        "missing",
        (1,),
        "rank 1",
    ),
    # ------------------------------------------------------------ different calls under one number
    ("another operation", world(*DIFFERENT), "mismatch", (0,), "different collectives at #17"),
    ("two against two", world(*HALF), "mismatch", (), "different collectives at #17"),
    ("two against one and one", world(coll(0), coll(1), coll(2, size=8), coll(3, size=9)), "mismatch", (), "in size"),
    ("two against one that is known", world(coll(0), coll(1), coll(2, size=8), busy(3)), "mismatch", (), "in size"),
    ("all of them", world(*(coll(r, size=r + 1) for r in ALL)), "mismatch", (), "in size"),
    (
        "an object collective, of which one rank is in the second half",
        world(
            *(coll(r, "all_reduce" if r == 1 else "all_gather_object", 17 + (r == 3), parts=1 + (r == 3)) for r in ALL)
        ),
        "mismatch",
        (1,),
        "different collectives at #17",
    ),
    (
        "uneven sizes of an all_to_all that does without them",
        world(*(coll(r, "all_to_all_single", size=8 if r == 1 else 16) for r in ALL)),
        "mismatch",
        (1,),
        "in size",
    ),
    (
        "splits of one that fit no other",
        world(*(coll(r, "all_to_all_single", detail=f"splits={[1 + (r == 1)] * 4}→[1, 1, 1, 1]") for r in ALL)),
        "mismatch",
        (1,),
        "split sizes",
    ),
    (
        "another shape",
        world(coll(0), coll(1, size=8), coll(2), coll(3)),
        "mismatch",
        (1,),
        "all_reduce #17 of group world differs",
    ),
    ("another dtype", world(coll(0), coll(1), coll(2, dtypes=("int64",)), coll(3)), "mismatch", (2,), "in dtype"),
    ("another root", world(*(coll(r, "broadcast", detail=f"src={r // 3}") for r in ALL)), "mismatch", (3,), "in root"),
    (
        "another reduction",
        world(*(coll(r, detail=f"op={'MAX' if r == 1 else 'SUM'}") for r in ALL)),
        "mismatch",
        (1,),
        "in reduction",
    ),
    (
        "splits that do not fit",
        world(
            coll(0, "all_to_all_single", 1, "1", detail="splits=[1, 3]→[1, 3]"),
            coll(1, "all_to_all_single", 1, "1", detail="splits=[2, 2]→[3, 1]"),
            busy(2),
            busy(3),
        ),
        "mismatch",
        (1,),
        "split sizes",
    ),
    (
        "splits of two that do not fit each other",
        world(
            coll(0, "all_to_all_single", 1, "1", detail="splits=[1, 3]→[1, 3]"),
            coll(1, "all_to_all_single", 1, "1", detail="splits=[2, 2]→[3, 2]"),
            busy(2),
            busy(3),
        ),
        "mismatch",
        (),
        "split sizes",
    ),
    (
        "it began one earlier",
        world(*(coll(r, EARLIER[r][1], size=0, recent=(EARLIER[r][0],)) for r in ALL)),
        "mismatch",
        (2,),
        "at #16",
    ),
    (
        "one has failed in it",
        world(over(0, "failed", number=17, recent=(call(size=8),)), coll(1), coll(2), coll(3)),
        "mismatch",
        (0,),
        "in size",
    ),
    (
        "one is through",
        world(over(0, number=17, recent=(call("broadcast", is_done=True),)), coll(1), coll(2), coll(3)),
        "mismatch",
        (0,),
        "different collectives",
    ),
    # ------------------------------------------------------------ sends and receives
    (
        "recv from one that is over",
        world(recv(0, 1), over(1), busy(2), busy(3)),
        "transfer",
        (1,),
        "rank 1 (node 0, h0) has not sent to rank 0, which waits in recv from rank 1",
    ),
    (
        "send to one that is over",
        world(send(0, 1), over(1), busy(2), busy(3)),
        "transfer",
        (1,),
        "rank 1 (node 0, h0) has not received from rank 0, which waits in send to rank 1",
    ),
    (
        "irecv waited for",
        world(moving(0, "irecv", 1), over(1), busy(2), busy(3)),
        "transfer",
        (1,),
        "irecv from rank 1",
    ),
    (
        "recv from any, all over",
        world(recv(0, ANY), over(1), over(2), over(3)),
        "transfer",
        (1, 2, 3),
        "no rank has sent",
    ),
    (
        "a recv after two that were served",
        world(recv(0, 1, nth=3), over(1, channels=sent(0, 2)), busy(2), busy(3)),
        "transfer",
        (1,),
        "has sent 2 messages to rank 0, which waits in recv number 3 from rank 1",
    ),
    (
        "a send after one that was received",
        world(send(0, 1, nth=2), over(1, channels=received(0, 1)), busy(2), busy(3)),
        "transfer",
        (1,),
        "has received 1 message from rank 0, which waits in send number 2 to rank 1",
    ),
    (
        "sent with another tag",
        world(recv(0, 1, tag=3), over(1, channels=sent(0, 1, tag=4)), busy(2), busy(3)),
        "transfer",
        (1,),
        "recv from rank 1 with tag 3",
    ),
    (
        "sent in another group",
        world(recv(0, 1, group="1"), over(1, channels=sent(0)), busy(2), busy(3)),
        "transfer",
        (1,),
        "recv from rank 1 in group tp",
    ),
    (
        "what it sent was taken by a recv from any",
        world(recv(0, 1, channels=received(ANY, 1, taken=((1, 1),))), over(1, channels=sent(0)), busy(2), busy(3)),
        "transfer",
        (1,),
        "has not sent to rank 0",
    ),
    (
        "recv from any, after one of each",
        world(recv(0, ANY, nth=2, channels=received(2)), over(1, channels=sent(0)), over(2, channels=sent(0)), over(3)),
        "transfer",
        (1, 2, 3),
        "no rank has sent to rank 0",
    ),
    ("both receive", world(recv(0, 1), recv(1, 0), busy(2), busy(3)), "transfer", (0, 1), "cross each other's"),
    ("both send", world(send(0, 1), send(1, 0), over(2), over(3)), "transfer", (0, 1), "(0 → 1 → 0)"),
    (
        "tags that differ",
        world(send(0, 1, tag=7), recv(1, 0, tag=8), busy(2), busy(3)),
        "transfer",
        (0, 1),
        "send and receive past each other, with another tag",
    ),
    (
        "groups that differ",
        world(send(0, 1, group="1"), recv(1, 0), busy(2), busy(3)),
        "transfer",
        (0, 1),
        "with another group",
    ),
    (
        "a ring of receives",
        world(recv(0, 3), recv(1, 0), recv(2, 1), recv(3, 2)),
        "cycle",
        ALL,
        "wait for each other in a circle",
    ),
    ("recv against a collective", world(recv(0, 1), coll(1), busy(2), busy(3)), "cycle", (0, 1), "(0 → 1 → 0)"),
    # ------------------------------------------------------------ circles of groups
    (
        "two groups the other way round",
        world(busy(0), coll(1, number=1, group="3"), coll(2), coll(3)),
        "cycle",
        (1, 2),
        "circle",
    ),
    ("behind a circle", world(recv(0, 1), recv(1, 0), recv(2, 0), busy(3)), "transfer", (0, 1), "ranks 0-1"),
    # ------------------------------------------------------------ the store
    ("new_group on some", world(store(0), over(1), store(2), store(3)), "store", (1,), "has not called new_group"),
    ("new_group of some of them", world(store(0, needs=(0, 1)), over(1), over(2), over(3)), "store", (1,), "rank 1"),
    (
        "a key that nobody sets",
        world(store(0, "store.wait", waits_for="key 'a'"), over(1), over(2), over(3)),
        "store",
        (1, 2, 3),
        "at the store for key 'a'",
    ),
    (
        "a key that one waits for, and the others for it",
        world(store(0, "store.wait", waits_for="key 'a' at the store"), coll(1), coll(2), coll(3)),
        "store",
        (0,),
        "rank 0 (node 0, h0) waits for key 'a' at the store, and no rank is left that can set it",
    ),
    (
        "a key that all wait for",
        world(*(store(r, "store.get", waits_for="key 'a' at the store") for r in ALL)),
        "store",
        (),
        "ranks 0-3 wait for key 'a' at the store, and no rank is left that can set it",
    ),
    (
        "keys of their own",
        world(*(store(r, "store.get", waits_for=f"key '{r // 2}' at the store") for r in ALL)),
        "store",
        (),
        "ranks 0-1 wait for key '0' at the store, ranks 2-3 wait for key '1' at the store",
    ),
    ("new_group against a collective", world(store(0), coll(1), coll(2), coll(3)), "cycle", (0, 1), "circle"),
]


@pytest.mark.parametrize(
    ("ranks", "kind", "responsible", "text"), [c[1:] for c in CERTAIN], ids=[c[0] for c in CERTAIN]
)
def test_a_run_that_cannot_finish(
    ranks: dict[int, RankSnapshot], kind: str, responsible: tuple[int, ...], text: str
) -> None:
    found = decide(12, ranks)
    assert found is not None
    assert (found.kind, found.responsible) == (kind, responsible)
    assert found.is_certain
    assert text in found.headline
    assert all(ranks[r].is_blocked for r in found.waiting)
    named = {r for r in found.responsible if f"rank {r}" in str(found)}
    assert named or "ranks" in str(found) or not found.responsible


LEFT_ALONE = [
    ("nobody is known", {}),
    ("all compute", world(busy(0), busy(1), busy(2), busy(3))),
    ("all are over", world(over(0), over(1), over(2), over(3))),
    ("the last one is on its way", world(coll(0), coll(1), coll(2), busy(3))),
    ("all are in it", world(coll(0), coll(1), coll(2), coll(3))),
    ("one is through already", world(coll(0), coll(1), coll(2), over(3, number=17))),
    ("one is further", world(coll(0), coll(1), coll(2), coll(3, number=18))),
    (
        "one has begun it asynchronously and ended",
        world(coll(0), over(1, number=17, recent=(call(),)), coll(2), coll(3)),
    ),
    ("it is no member", world(coll(0, number=1, group="1"), coll(1, number=1, group="1"), over(2), over(3))),
    ("the missing one runs another cell", world(coll(0), coll(1), coll(2), busy(3, part="elsewhere"))),
    ("the missing one has not been seen", world(coll(0), coll(1), coll(2), RankSnapshot("rank 3", "running"))),
    ("the missing one began a cell meanwhile", world(coll(0), coll(1), coll(2), RankSnapshot("rank 3", "elsewhere"))),
    ("a message under way", world(recv(0, 1), send(1, 0), busy(2), busy(3))),
    ("an isend under way from one that is over", world(recv(0, 1), over(1, channels=sent(0)), busy(2), busy(3))),
    ("the third of three messages", world(recv(0, 1, nth=3), over(1, channels=sent(0, 3)), busy(2), busy(3))),
    ("a send to one that receives from any", world(send(0, 1), over(1, channels=received(ANY)), busy(2), busy(3))),
    ("recv from any, one has sent", world(recv(0, ANY), over(1), over(2, channels=sent(0)), over(3))),
    ("a key, with a timeout that is near", world(store(0, "store.wait", is_limited=True), over(1), over(2), over(3))),
    ("recv from any, one computes", world(recv(0, ANY), over(1), over(2), busy(3))),
    ("recv from any, one sends", world(recv(0, ANY), over(1), over(2), send(3, 0))),
    ("a pipeline behind one that computes", world(busy(0), recv(1, 0), recv(2, 1), recv(3, 2))),
    ("new_group, one is on its way", world(store(0), busy(1), store(2), store(3))),
    ("new_group of two, both there", world(store(0, needs=(0, 1)), store(1, needs=(0, 1)), over(2), over(3))),
    ("a key that one may still set", world(store(0, "store.wait"), over(1), busy(2), over(3))),
    (
        "uneven splits that fit",
        world(
            coll(0, "all_to_all_single", 1, "1", detail="splits=[1, 3]→[1, 2]"),
            coll(1, "all_to_all_single", 1, "1", detail="splits=[2, 2]→[3, 2]"),
            busy(2),
            busy(3),
        ),
    ),
    ("the same elements in other shapes", world(coll(0, shapes=((4, 4),)), coll(1), coll(2), coll(3))),
    (
        "scatter, where only the root brings tensors",
        world(coll(0, "scatter", size=4), *(coll(r, "scatter", size=0) for r in (1, 2, 3))),
    ),
    ("only another run's rank waits", world(coll(0, part="elsewhere"), over(1), over(2), over(3))),
]


@pytest.mark.parametrize("ranks", [c[1] for c in LEFT_ALONE], ids=[c[0] for c in LEFT_ALONE])
def test_what_may_still_finish_is_left_alone(ranks: dict[int, RankSnapshot]) -> None:
    assert decide(12, ranks) is None


# ---------------------------------------------------------------- a rank that gloo has ended

SIGABRT = "killed by signal 6 (SIGABRT)"


def lost(rank: int, alive: RankSnapshot | None = None, reason: str = SIGABRT) -> RankSnapshot:
    """A rank that has died; ``alive``: as it could report itself before."""
    return RankSnapshot(
        f"rank {rank} (node {rank // 2}, h{rank // 2})", "lost", alive.observation if alive else None, note=reason
    )


MESSAGE: dict[str, Any] = {"shapes": ((16,),), "dtypes": ("float32",)}
CRASHES = [
    (
        "another size, the victim agreed with the others",
        (coll(0), coll(1, size=8), coll(2), coll(3)),
        {0},
        (1,),
        "in size",
    ),
    ("the victim differed", (coll(0), coll(1), coll(2, size=8), coll(3)), {2}, (2,), "in size"),
    ("two victims, one of which differed", (coll(0), coll(1, size=8), coll(2), coll(3)), {0, 1}, (1,), "in size"),
    ("two against two", (coll(0), coll(1), coll(2, size=8), coll(3, size=8)), {2}, (), "in size"),
    ("another operation", (coll(0), coll(1), coll(2, "broadcast"), coll(3)), {1}, (2,), "different collectives"),
    ("another dtype", (coll(0), coll(1), coll(2, dtypes=("int64",)), coll(3)), {1}, (2,), "in dtype"),
    (
        "the others have left it already",
        (over(0, number=17, recent=(call(is_done=True),)), coll(1, size=8), coll(2), coll(3)),
        {1},
        (1,),
        "in size",
    ),
    (
        "a message that is too large",
        (send(0, 1, shapes=((17,),), dtypes=("float32",)), recv(1, 0, **MESSAGE), busy(2), busy(3)),
        {1},
        (),
        "what rank 0 sends to rank 1 differs in size from what rank 1 receives",
    ),
    (
        "of an exchange, whose send began last",
        (
            moving(0, "isend", 1, shapes=((1001,),), dtypes=("float32",), channels=received(1)),
            seen(
                1,
                doing=Activity("python"),
                recent=(Call("irecv", "0", peer=0, nth=1, **MESSAGE), Call("isend", "0", peer=2, nth=1, started=9.0)),
            ),
            busy(2),
            busy(3),
        ),
        {1},
        (),
        "what rank 0 sends to rank 1 differs in size",
    ),
    (
        "one is through, and in another group's",
        (
            coll(0, "all_to_all_single", size=2000),
            coll(1, "all_to_all_single", size=2000),
            coll(2, number=1, group="2", recent=(call("all_to_all_single", size=4, is_done=True),)),
            coll(3, "all_to_all_single", size=2000),
        ),
        {0, 1, 3},
        (2,),
        "all_to_all_single #17 of group world differs",
    ),
    (
        "a message of wider numbers",
        (send(0, 1, shapes=((16,),), dtypes=("float64",)), recv(1, ANY, **MESSAGE), busy(2), busy(3)),
        {1},
        (),
        "differs in dtype",
    ),
]


@pytest.mark.parametrize(
    ("ranks", "victims", "responsible", "text"), [c[1:] for c in CRASHES], ids=[c[0] for c in CRASHES]
)
def test_a_rank_that_gloo_ended_is_explained_by_calls_that_do_not_fit(
    ranks: tuple[RankSnapshot, ...], victims: set[int], responsible: tuple[int, ...], text: str
) -> None:
    losses = {r: lost(r, ranks[r]) for r in victims}
    found = decide_on_loss(12, losses, {r: s for r, s in enumerate(ranks) if r not in victims})
    assert (found.kind, found.responsible, found.remedies) == ("mismatch", responsible, ())
    assert text in found.reason
    named = " ".join(found.details)
    assert all(re.search(rf"\b{r}\b", named) for r in victims)
    assert found.details[-1].endswith(f"lost: {SIGABRT}")


def test_of_a_group_of_two_the_survivors_call_did_not_fit_that_of_a_rank_which_reported_nothing() -> None:
    one = coll(1, number=3, group="1", size=7)
    for left in (one, over(1, "failed", begun={"1": 3}, recent=(call(number=3, group="1", size=7, has_failed=True),))):
        found = decide_on_loss(12, {0: lost(0)}, {1: left, 2: busy(2), 3: busy(3)})
        assert (found.kind, found.responsible) == ("mismatch", ())
        assert found.details[0] == "rank 1 calls all_reduce [7] float32 in group tp"


def test_ranks_that_agree_do_not_explain_a_loss_and_nor_do_calls_explain_a_kill() -> None:
    agreeing = {r: coll(r) for r in (1, 2, 3)}
    for loss in (lost(0), lost(0, coll(0)), lost(0, coll(0, size=8), "killed by signal 9 (SIGKILL)")):
        found = decide_on_loss(12, {0: loss}, agreeing)
        assert (found.kind, found.responsible, found.details) == ("lost", (0,), ())
        assert found.reason == f"rank 0 (node 0, h0) is lost: {loss.note}"
    unknown = decide_on_loss(12, {0: lost(0)}, {1: coll(1), 2: coll(2, size=7), 3: coll(3)})
    assert (unknown.kind, unknown.responsible) == ("mismatch", ()), "rank 0 may have called what rank 2 did"
    several = decide_on_loss(12, {0: lost(0), 1: lost(1), 3: lost(3, reason="exited with code 3")}, {2: coll(2)})
    assert several.reason == f"ranks 0-1 are lost: {SIGABRT}"
    assert several.details == ("rank 3 (node 1, h1) is lost: exited with code 3",)


@pytest.mark.parametrize(
    "failed",
    [
        {"recent": (call(is_done=True, has_failed=True),)},  # gloo's recorder takes a failed call for a done one
        {"recent": (call(is_done=True),), "is_echo": True},  # it was asynchronous: its wait() raised
        {"is_echo": True},
    ],
)
def test_ranks_that_failed_in_a_collective_are_waited_for_in_vain(failed: dict[str, Any]) -> None:
    gone = [over(r, "failed", 17, note="RuntimeError: Connection closed by peer", **failed) for r in (0, 2, 3)]
    found = decide(12, world(gone[0], coll(1), gone[1], gone[2]))
    assert found is not None
    assert (found.kind, found.responsible, found.waiting) == ("missing", (0, 2, 3), (1,))
    assert found.reason == "ranks 0, 2-3 have left all_reduce #17 [16] float32 of group world"
    assert [remedy.action for remedy in found.remedies] == ["interrupt"]


def test_a_rank_that_failed_after_a_collective_has_done_its_part_in_it() -> None:
    failed = over(0, "failed", 17, note="ValueError: x", recent=(call(is_done=True),))
    assert decide(12, world(failed, coll(1), coll(2), coll(3))) is None


@pytest.mark.parametrize("later", [call("all_reduce", 3, group="tp"), call("send", 0, peer=2)])
def test_a_rank_whose_connection_broke_in_a_later_call_has_done_its_part_in_the_one_before(later: Call) -> None:
    later = structs.replace(later, started=20.0, is_done=True, has_failed=True)
    recent = (call(started=10.0, is_done=True), later)
    failed = over(0, "failed", 17, note="RuntimeError: Connection closed by peer", is_echo=True, recent=recent)
    assert decide(12, world(failed, coll(1), coll(2), coll(3))) is None


# ---------------------------------------------------------------- slow is not hung


def test_who_is_waited_for_is_said_after_a_while_with_its_line() -> None:
    ranks = world(coll(0, seconds=5.2), coll(1, seconds=5.0), busy(2, seconds=6.1), coll(3, seconds=4.9))
    found = decide(12, ranks)
    assert found is not None
    assert not found.is_certain
    assert (found.kind, found.responsible, found.waiting) == ("slow", (2,), (0, 1))
    assert found.headline == "run 12 waits: ranks 0-1 wait for rank 2 (node 1, h1)"
    assert "rank 2 is at cell line 3: loader.next() (6.1 s, sleeping or waiting)" in found.details
    assert decide(12, ranks, slow_after=5.5) is None


def test_a_message_that_does_not_arrive_although_it_was_begun_is_reported_as_slow() -> None:
    """It may be large. So may an isend whose Work was dropped, which never arrives."""
    ranks = world(recv(0, 1, seconds=5.5), over(1, channels=sent(0)), busy(2), busy(3))
    found = decide(12, ranks)
    assert found is not None
    assert (found.kind, found.responsible, found.waiting, found.is_certain) == ("slow", (1,), (0,), False)
    assert "waits in recv from rank 1 for a message that rank 1 has begun to send" in found.headline
    assert found.details[1] == "gloo cancels an isend whose Work is not kept until it is done"
    assert decide(12, world(recv(0, 1, seconds=1.0), over(1, channels=sent(0)), busy(2), busy(3))) is None


def test_the_far_end_of_a_chain_is_named() -> None:
    found = decide(12, world(busy(0, cpu=0.98), recv(1, 0, seconds=9), recv(2, 1, seconds=9), recv(3, 2, seconds=9)))
    assert found is not None
    assert (found.responsible, found.waiting) == ((0,), (1, 2, 3))
    assert any("98 % CPU" in line for line in found.details)


def test_a_rank_that_does_not_answer_is_slow_not_gone() -> None:
    silent = seen(3, "running", Activity("silent", state="stopped by a signal (SIGSTOP)"))
    found = decide(12, world(coll(0, seconds=7), coll(1, seconds=7), coll(2, seconds=7), silent))
    assert found is not None
    assert not found.is_certain
    assert "rank 3 does not answer: stopped by a signal (SIGSTOP)" in found.details


@pytest.mark.parametrize("part", ["done", "failed", "free"])
@pytest.mark.parametrize("look", [None, Observation("", Activity("silent", state="does not answer"), 0)])
def test_a_rank_that_does_not_answer_may_have_entered_it_though_its_part_is_over(
    part: Part, look: Observation | None
) -> None:
    """How far it came is not known: it is no culprit, and it is named once the others have waited for long."""
    silent = RankSnapshot("rank 3 (node 1, h1)", part, look, 0.6)
    assert decide(12, world(coll(0), coll(1), coll(2), silent)) is None
    assert decide(12, world(store(0), store(1), store(2), silent)) is None
    found = decide(12, world(*(coll(r, seconds=7) for r in range(3)), silent))
    assert found is None if look is None else (found is not None and not found.is_certain)


def test_at_its_deadline_a_run_says_who_is_busy() -> None:
    found = decide_at_deadline(3, world(busy(0, seconds=60.4), over(1), busy(2, seconds=2.0, cpu=1.0), over(3)))
    assert found is not None
    assert found.headline == "run 3 waits: ranks 0, 2 are still busy"
    assert found.details[0].startswith("rank 0 is at cell line 3")
    assert decide_at_deadline(3, world(over(0), over(1))) is None


# ---------------------------------------------------------------- suggested actions, and how certain it is


def test_only_free_ranks_can_join() -> None:
    joined = decide(12, world(coll(0), over(1), over(2), coll(3)))
    assert joined is not None
    assert [(r.action, r.ranks) for r in joined.remedies] == [("interrupt", ""), ("run_cell", "1,2")]
    for ranks in (
        DIFFERENT,
        (recv(0, 1), recv(1, 0), busy(2), busy(3)),
        (coll(0), coll(1), coll(2), RankSnapshot("rank 3", "lost")),
    ):
        found = decide(12, world(*ranks))
        assert found is not None
        assert [r.action for r in found.remedies] == ["interrupt"]


def test_one_poll_confirms_what_is_numbered_only() -> None:
    numbered, other = world(coll(0), over(1), coll(2), coll(3)), world(recv(0, 1), over(1), busy(2), busy(3))
    expected = world(coll(0), over(1), coll(2, is_expected=True), coll(3))
    for ranks, is_enough in ((numbered, True), (other, False), (expected, False)):
        found = decide(12, ranks)
        assert found is not None
        assert is_confirmed(found, ranks) is is_enough
