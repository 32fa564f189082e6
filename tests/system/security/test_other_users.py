"""Another user of the same host: sees that there is a cluster, and can neither read, join, inject, stop nor attach."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import jdist
from jdist.client import find
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.keys import charter_path, read_charter
from jdist.wire.values.segments import Segment
from support.attempts import TRY_CONTROL, TRY_FILES, TRY_PORTS


@pytest.fixture
def line(cluster: jdist.Cluster) -> JoinLine:
    return JoinLine.decode(cluster.invite())


def tree(cluster: jdist.Cluster) -> Iterator[psutil.Process]:
    """Controller, agents and everything below them."""
    ranks = [psutil.Process(r.pid) for r in cluster.status().ranks]
    agents = {r.ppid() for r in ranks}
    for pid in (find.connections()[cluster.name].pid, *agents):
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)


def files(cluster: jdist.Cluster) -> list[Path]:
    """All that a cluster has on this host."""
    identity = find.connections()[cluster.name].cluster
    folders = list(Path(tempfile.gettempdir()).glob(f"jdist-{identity}-*"))
    inside = [p for folder in folders for p in folder.rglob("*")]
    shared = list(Path("/dev/shm").glob(f"jdist-{identity}-*"))
    own = list(find.directory().glob(f"jdist-{cluster.name}*"))
    assert folders
    assert len(own) >= 3, "connection file, charter, log"
    return [*folders, *inside, *shared, *own]


@contextlib.contextmanager
def open_segment(cluster: jdist.Cluster) -> Iterator[None]:
    """A value on its way."""
    with Segment.create(find.connections()[cluster.name].cluster, 1 << 16) as segment:
        try:
            yield
        finally:
            segment.unlink()


def test_files_are_the_users_alone(cluster: jdist.Cluster) -> None:
    with open_segment(cluster):
        for path in files(cluster):
            mode = path.lstat().st_mode
            is_guarded = any(p.name.startswith("jdist-") and p.is_dir() for p in path.parents)
            if not is_guarded:
                assert stat.S_IMODE(mode) & 0o077 == 0, f"{path} has mode {stat.S_IMODE(mode):o}"
                assert path.lstat().st_uid == os.geteuid()


def test_another_user_reads_nothing_and_ends_nothing(cluster: jdist.Cluster, as_another: Callable[..., str]) -> None:
    with open_segment(cluster):
        for folder in (find.directory(), Path(tempfile.gettempdir())):
            folder.chmod(0o755)  # what guards a cluster must not be the folder around it
        try:
            paths = [str(p) for p in files(cluster)]
            pids = [p.pid for p in tree(cluster)]
            assert len(pids) >= 1 + 2 + 4
            uid, got = json.loads(as_another(TRY_FILES, json.dumps(paths), json.dumps(pids)))
        finally:
            for folder in (find.directory(), Path(tempfile.gettempdir())):
                folder.chmod(0o700)
    assert uid == 54321
    assert not got


def test_another_user_gets_nothing_at_any_port(
    cluster: jdist.Cluster, line: JoinLine, as_another: Callable[..., str]
) -> None:
    connection = find.connections()[cluster.name]
    listed = Path("/proc/net/unix").read_text()
    near = set(re.findall(rf"@(jdist-{connection.cluster}-\w+)", listed))
    assert near, "its name can be seen by anybody"
    places = [["127.0.0.1", p] for p in (connection.data_port, line.data_port)] + sorted(near)
    uid, got = json.loads(as_another(TRY_PORTS, json.dumps([places, connection.cluster])))
    assert uid == 54321
    assert not got


def test_who_has_the_servers_public_key_only_gets_nothing(
    cluster: jdist.Cluster, line: JoinLine, as_another: Callable[..., str]
) -> None:
    connection = find.connections()[cluster.name]
    for port in (connection.control_port, line.control_port):
        what = json.dumps([port, connection.server_key, "a-" + "0" * 32])
        uid, got = json.loads(as_another(TRY_CONTROL, what))
        assert uid == 54321
        assert not got
    assert cluster.run("rank").values == {0: 0, 1: 1, 2: 2, 3: 3}


def test_no_secret_is_in_argv_environment_or_log(cluster: jdist.Cluster, line: JoinLine) -> None:
    charter = read_charter(charter_path(find.directory(), cluster.name))
    secrets = [charter.keys.secret, charter.for_clients.secret, line.key.secret, line.encode()]
    secrets += [i.key.secret for i in charter.invitations]
    assert len(set(secrets)) >= 4
    cluster.run("print('a line'); import os; dict(os.environ)")
    seen = 0
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                data = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue  # it has ended
            seen += 1
            assert not any(s.encode() in data for s in secrets), f"/proc/{pid}/{name}"
    assert seen > 10
    logs = [p for p in files(cluster) if p.suffix == ".log" and p.is_file()]
    assert len(logs) >= 2
    for log in logs:
        text = log.read_text(errors="replace")
        assert not any(s in text for s in secrets), log
    for printed in (repr(charter), repr(line), str(cluster.status())):
        assert not any(s in printed for s in secrets[:3])


def test_ranks_and_store_listen_at_the_chosen_address_only(cluster: jdist.Cluster) -> None:
    cluster.run("import torch; _t = torch.ones(1); dist.all_reduce(_t)")
    listening = {}
    for process in tree(cluster):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            for c in process.net_connections("inet"):
                if c.status == psutil.CONN_LISTEN and process.name() != "jdist":
                    listening[process.name(), c.laddr.port] = c.laddr.ip
    controller = find.connections()[cluster.name].pid
    doors = {c.laddr.port for c in psutil.Process(controller).net_connections("inet") if c.status == psutil.CONN_LISTEN}
    others = {at: ip for at, ip in listening.items() if at[1] not in doors}
    assert any("store" in name for name, _ in others), others
    assert set(others.values()) == {"127.0.0.1"}, others
