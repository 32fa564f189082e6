"""The recovery ledger: whether a rank's names are lost is known to the next controller."""

from __future__ import annotations

from jdist.agent.recovery_ledger import RecoveryLedger
from jdist.core.messages.membership import CarriedNames, StartWorker, WorldFormed


def test_a_replaced_worker_is_fresh_until_it_has_taken_over_names() -> None:
    ledger = RecoveryLedger()
    for worker, incarnation in enumerate((0, 1, 1, 2)):
        ledger.record_start(StartWorker(worker, worker, incarnation))
    ledger.record(WorldFormed(1, 6, "cpu", ()))
    ledger.record(WorldFormed(2, 6, "cpu", (), carried=CarriedNames(3)))
    ledger.record(WorldFormed(3, 6, "cpu", (), carried=CarriedNames(0)))
    ledger.record(WorldFormed(2, 7, "cpu", ()))
    held = ledger.describe({}, None)
    assert [worker.is_fresh for worker in held.workers] == [False, True, False, True]
