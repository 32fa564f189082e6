"""A few seconds of rubbish with fixed seeds; ``fuzz.py`` goes on for as long as asked."""

from __future__ import annotations

import random
from collections.abc import Callable

import jdist
from jdist.agent.processes.kernel import parse
from jdist.core.errors import ProtocolError
from support.fuzz import fuzz
from support.fuzz.folding import fold

SEED = 11


def test_the_state_takes_nonsense() -> None:
    assert fold(random.Random(SEED), 4) > 1000


def test_a_cluster_lives_with_rubbish_at_every_socket(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(2)
    said = fuzz.attack(cluster, SEED, 150)
    assert said["client"] == said["agent"] == said["guest"] == 150
    assert sum(said.values()) == 5 * 150


def test_what_no_kernel_says_is_no_message() -> None:
    source = random.Random(SEED)
    whole = [b"topic", b"<IDS|MSG>", b"sig", b'{"msg_type": "stream"}', b'{"msg_id": "jdist-1"}', b"{}", b"{}"]
    for _ in range(2000):
        frames = list(whole)
        for _ in range(source.randrange(1, 4)):
            at = source.randrange(len(frames) + 1)
            frames[at : at + source.randrange(3)] = [source.randbytes(source.randrange(20))]
        try:
            parse(frames)
        except ProtocolError:
            continue
    assert parse(whole).run == 1
