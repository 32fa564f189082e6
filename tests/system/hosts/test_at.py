"""Clusters of another host, through ssh alone, from a client that no node can reach and that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import jdist
from jdist.client.remote import host as host_module
from jdist.client.remote.host import RemoteHost
from jdist.client.threads import bridge
from jdist.core.errors import LaunchError, UsageError
from jdist.core.rank_code import cause_fault
from support.hosts.namespaces import Bed
from support.hosts.slurmd import Slurm
from support.hosts.sshd import PASSPHRASE, Sshd
from support.jobs import Jobs, jobs_in, run_words
from support.waits import eventually

COUNT = "import time\nfor i in range({n}):\n    print('line', i, flush=True)\n    time.sleep(0.1)\ni"


class There:
    """The hosts behind ssh, as this process reaches them."""

    def __init__(self, sshd: Sshd):
        self.sshd = sshd
        self.clusters: list[jdist.Cluster] = []

    def start(self, host: str = "a", nproc: int = 2, **options: Any) -> jdist.Cluster:
        cluster = jdist.start(nproc, at=host, idle_timeout=120, timeout=120, **options)
        self.clusters.append(cluster)
        return cluster

    def processes(self, host: str) -> list[psutil.Process]:
        """The processes on a host that were started by a login there."""
        mark, found = f"JUPYTER_RUNTIME_DIR={self.sshd.runtime(host)}", []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if mark in Path(f"/proc/{process.pid}/environ").read_text(errors="replace").split("\0"):
                    found.append(process)
        return found

    def all_named(self, host: str, word: str) -> list[psutil.Process]:
        """The processes on a host that have this word in their command lines; some may be ending."""
        found = []
        for process in self.processes(host):
            with contextlib.suppress(psutil.Error):
                found += [process] if word in process.cmdline() else []
        return found

    def named(self, host: str, word: str) -> psutil.Process:
        """The first of them."""
        return self.all_named(host, word)[0]


@pytest.fixture
def there(logins: Sshd, traces: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    monkeypatch.setenv("JDIST_SSH", logins.command)
    monkeypatch.setenv("JDIST_AT_PYTHON", sys.executable)
    found = There(logins)
    yield found
    for cluster in found.clusters:
        with contextlib.suppress(UsageError, jdist.ConnectionLost):
            cluster.stop(now=True)
        if any(found.all_named(host, "controller") for host in ("a", "b", "c")):  # it ends, or a test failed detached
            with contextlib.suppress(jdist.JdistError):
                jdist.attach(cluster.name).stop(now=True)
    for host in ("a", "b", "c"):
        assert eventually(lambda host=host: not found.processes(host)), found.processes(host)
        left = [p.name for p in found.sshd.runtime(host).glob("jdist-*") if p.suffix != ".log"]
        assert not left, f"left on {host}: {left}"
    host_module._hosts.clear()  # and what they remember


def connection(host: str) -> RemoteHost:
    return host_module._hosts[bridge().loop][host]


def kill_login(host: str) -> None:
    login = connection(host)._login
    assert login is not None
    assert login._process is not None
    login._process.kill()


def is_back(host: str) -> bool:
    return bool(eventually(lambda: connection(host).state == "open", 60))


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("line")]


def test_a_cluster_is_started_used_found_and_stopped_through_a_login_that_forwards_nothing(there: There) -> None:
    cluster = there.start("b")
    assert (cluster.name, len(cluster.nodes)) == ("b:c1", 1)
    assert jdist.list_clusters() == []
    cluster.run("import torch\nx = torch.full((3_000_000,), float(rank))")
    pulled = cluster.pull("x", ranks=[1])[1]
    assert (len(pulled), pulled.sum().item()) == (3_000_000, 3e6)
    cluster.push(y=pulled)
    assert cluster.run("y.sum().item()").values == {0: 3e6, 1: 3e6}
    cluster.detach()
    assert eventually(lambda: not there.sshd.sessions())
    again = jdist.attach("b:c1")
    assert again.run("x[0].item() + 1").values == {0: 1.0, 1: 2.0}
    assert "b:c1" in repr(again)
    assert again.status().facts.name == "b:c1"
    again.stop()
    with pytest.raises(UsageError, match="b: there is no cluster to attach to"):
        jdist.attach(at="b")


def test_a_jump_host_and_a_login_that_greets(there: There) -> None:
    cluster = there.start("through", nproc=1)
    assert cluster.run("1 + 1").values == {0: 2}
    cluster.stop()


def test_slurm_there_starts_the_nodes(there: There, slurm: Slurm) -> None:
    cluster = there.start("a", nproc=1, nnodes=2, launcher="slurm")
    assert (cluster.name, len(set(cluster.nodes))) == ("a:c1", 2)
    assert len(slurm.jobs()) == 1
    assert cluster.run("t = torch.ones(1)\ndist.all_reduce(t)\nt.item()").values == {0: 2.0, 1: 2.0}
    cluster.stop()
    assert eventually(lambda: not slurm.jobs())


def test_code_beside_the_notebook_reaches_hosts_that_share_no_folder_and_another_login_uses_it(
    there: There, slurm: Slurm, hosts: Bed, project: Path
) -> None:
    cluster = there.start("a", nproc=1, nnodes=2, launcher="slurm")
    run = cluster.run("import helper, os\nhelper.answer(), os.stat(os.path.expanduser('~')).st_ino")
    answers, homes = zip(*run.values.values(), strict=True)
    assert answers == (1, 1)
    assert len(set(homes)) == 2
    line = f"jdist: helper is not on nodes 0-1: synced 5 files of {project} to them\n"
    assert [run.outcomes[rank].stderr for rank in range(2)] == [line] * 2
    words = hosts.nodes[2].command([sys.executable, "-c", CLIENT, "import helper; helper.answer()"])
    client = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert "{0: 1}" in client.stdout, client.stderr
    cluster.stop()


def test_the_command_line_and_its_verbs(there: There) -> None:
    env = {**os.environ, "JDIST_AT": "a"}

    def jdist_(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "jdist", *words], env=env, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout + done.stderr

    assert "2 ranks on 1 node" in jdist_("start", "-n", "2", "--name", "mine", "--idle-timeout", "120")
    assert "a:mine" in jdist_("list")
    assert "cluster a:mine · ready" in jdist_("status")
    assert "no cluster is running" in jdist_("list", "--at", "b")
    assert "cluster a:mine is stopped" in jdist_("stop", "mine")
    assert "there is no launcher 'slrm'" in jdist_("start", "--launcher", "slrm")


def test_what_a_start_there_complains_of_is_said_here_and_nothing_is_left(there: There) -> None:
    with pytest.raises(LaunchError, match=r"a: .*--hosts"):
        there.start("a", launcher="ssh")


def test_the_python_there_is_named_once(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDIST_AT_PYTHON", "/no/python")
    with pytest.raises(LaunchError, match=r"there is no /no/python; environments of conda there: .*--python NAME"):
        jdist.attach(at="a")
    with pytest.raises(LaunchError, match="there is no no-environment;"):
        jdist.attach(at="a", at_python="no-environment")
    cluster = there.start("a", nproc=1, at_python=sys.executable)
    with pytest.raises(UsageError, match=r"a is in use here with .*, not with other; detach from its clusters first"):
        jdist.attach("a:c1", at_python="other")
    cluster.detach()
    assert eventually(lambda: not there.sshd.sessions())
    again = jdist.attach("a:c1")
    assert again.run("1").values == {0: 1}
    again.stop()
    with pytest.raises(UsageError, match="--python x: it names the Python at a host behind ssh, with --at HOST"):
        jdist.attach(at_python="x")


def test_a_passphrase_is_asked_for_where_somebody_waits(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def type_it(prompt: str) -> str:
        asked.append(prompt)
        return PASSPHRASE

    monkeypatch.setattr(getpass, "getpass", type_it)
    monkeypatch.setattr(host_module, "who_is_asked", lambda: "user")
    cluster = there.start("locked", nproc=1)
    assert cluster.run("rank").values == {0: 0}
    assert len(asked) == 1
    assert "passphrase" in asked[0]
    cluster.stop()


def test_where_nothing_can_be_asked_the_error_says_what_to_do(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match=r"Permission denied.*ControlMaster"):
        there.start("locked")

    def refuse(_: str) -> str:
        raise EOFError

    monkeypatch.setattr(getpass, "getpass", refuse)
    monkeypatch.setattr(host_module, "who_is_asked", lambda: "user")
    with pytest.raises(LaunchError, match="Permission denied"):
        there.start("locked")


@pytest.mark.parametrize("host", ["nowhere", "changed", "unseen", "stranger"])
def test_a_host_that_cannot_be_reached_is_named_with_the_reason(
    there: There, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "no")
    monkeypatch.setattr(host_module, "who_is_asked", lambda: "user")
    with pytest.raises(LaunchError, match=f"ssh {host}: "):
        there.start(host)


def kill_ssh(_: There, __: Bed) -> None:
    kill_login("a")


def kill_serve(there: There, _: Bed) -> None:
    there.named("a", "serve").kill()


def cut_cable(_: There, bed: Bed) -> None:
    bed.cut(0)
    assert eventually(lambda: connection("a").is_away, 60)
    bed.heal(0)


@pytest.mark.parametrize("fault", [kill_ssh, kill_serve, cut_cable], ids=lambda f: f.__name__)
def test_a_run_goes_on_while_the_connection_is_broken_and_its_output_follows(
    there: There, hosts: Bed, fault: Callable[[There, Bed], None]
) -> None:
    cluster = there.start("a")
    notices: list[str] = []
    cluster.asynchronous.watch(lambda m: notices.append(str(m)))
    run = cluster.run(COUNT.format(n=50), ranks=[0], background=True)
    assert eventually(lambda: run.state == "running")
    fault(there, hosts)
    assert is_back("a")
    assert run.wait(60)
    assert run.values == {0: 49}
    assert lines(run.outcomes[0].stdout) == [f"line {n}" for n in range(50)]
    assert any("the connection to a broke" in notice for notice in notices)
    assert any("is back after" in notice for notice in notices)
    assert cluster.run("i + rank", ranks=[0]).values == {0: 49}
    cluster.stop()


CLIENT = """
import sys, jdist
cluster = jdist.attach(at="a")
run = cluster.run(sys.argv[1], ranks=[0], background=True)
run.watch(lambda m: print("started", flush=True) if type(m).__name__ == "RunStarted" else None)
run.wait()
print(run.outcomes[0].stdout, run.values, flush=True)
cluster.detach()
"""


@pytest.fixture
def moved(hosts: Bed, logins: Sshd) -> Iterator[Callable[[], None]]:
    """Gives node c another address, and at the end its own again, once no login is left: each hears of its end."""
    node = hosts.nodes[2]
    own, other = f"{node.address}/24", f"{node.address.rpartition('.')[0]}.77/24"

    def move() -> None:
        node.run("ip", "addr", "del", own, "dev", "eth0")
        node.run("ip", "addr", "add", other, "dev", "eth0")

    yield move
    with contextlib.suppress(OSError):  # it has not been moved
        node.run("ip", "addr", "add", own, "dev", "eth0")
        assert eventually(lambda: not logins.sessions()), logins.sessions()
        node.run("ip", "addr", "del", other, "dev", "eth0")  # the first of its network, and with it all others
        node.run("ip", "addr", "add", own, "dev", "eth0")


def test_a_client_whose_address_changes_misses_nothing(there: There, hosts: Bed, moved: Callable[[], None]) -> None:
    there.start("a").detach()
    words = hosts.nodes[2].command([sys.executable, "-c", CLIENT, COUNT.format(n=80)])
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "started\n"
        moved()
        out, _ = client.communicate(timeout=90)
    assert lines(out) == [f"line {n}" for n in range(80)]
    there.clusters[0] = jdist.attach(at="a")
    there.clusters[0].stop()


def test_a_client_that_is_stopped_for_a_while_misses_nothing(there: There, hosts: Bed) -> None:
    """Until the host has given its login up."""
    there.start("a").detach()
    words = hosts.nodes[2].command([sys.executable, "-c", CLIENT, COUNT.format(n=100)])
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "started\n"
        ours = [client.pid, *(p.pid for p in psutil.Process(client.pid).children(recursive=True))]
        for pid in ours:  # as the whole computer that sleeps
            os.kill(pid, signal.SIGSTOP)
        assert eventually(lambda: not there.sshd.sessions(), 60)
        for pid in ours:
            os.kill(pid, signal.SIGCONT)
        out, _ = client.communicate(timeout=90)
    assert lines(out) == [f"line {n}" for n in range(100)]
    assert "{0: 99}" in out
    there.clusters[0] = jdist.attach(at="a")


@pytest.fixture
def master(logins: Sshd, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Opens a master connection to b, which ssh uses from then on, as with ControlPath; again if it has ended."""
    socket, opened = runtime_directory / "master", contextlib.ExitStack()
    monkeypatch.setenv("JDIST_SSH", f"{logins.command} -S {socket}")

    def open_it() -> None:
        opened.close()
        process = subprocess.Popen([*logins.command.split(), "-N", "-M", "-S", str(socket), "b"])
        opened.enter_context(process)
        opened.callback(process.kill)
        assert eventually(socket.exists)

    yield open_it
    opened.close()
    socket.unlink(missing_ok=True)


def test_a_master_connection_lets_in_whom_nothing_else_would(there: There, master: Callable[[], None]) -> None:
    """As where a second factor is asked for: whoever has opened it has answered."""
    master()
    cluster = there.start("stranger")
    assert len(there.sshd.sessions()) == 1, "it is a guest of the one connection"
    run = cluster.run(COUNT.format(n=40), ranks=[0], background=True)
    assert eventually(lambda: run.state == "running")
    subprocess.run([*os.environ["JDIST_SSH"].split(), "-O", "exit", "stranger"], check=True, capture_output=True)
    assert eventually(lambda: "Permission denied" in connection("stranger").problem)
    master()
    assert is_back("stranger")
    assert run.wait(60)
    assert lines(run.outcomes[0].stdout) == [f"line {n}" for n in range(40)]
    cluster.stop()


PLOT = """
import base64, os, time
from IPython.display import display, update_display
def picture(): return {"image/png": base64.b64encode(os.urandom(750_000)).decode(), "text/plain": str(made)}
made = 0
display(picture(), raw=True, display_id="plot")
while True:
    time.sleep(0.1)
    made += 1
    update_display(picture(), raw=True, display_id="plot")
"""


def test_on_a_slow_link_a_live_plot_shows_its_newest_picture_and_can_be_stopped(there: There, hosts: Bed) -> None:
    cluster, shown = there.start("a", nproc=1), [-1]

    def see(message: Any) -> None:
        pictures = [item.data for item in getattr(message, "items", ()) if hasattr(item, "data")]
        shown.extend(int(each["text/plain"]) for each in pictures if "image/png" in each)

    with hosts.nodes[0].sending_at("8mbit"):
        run = cluster.run(PLOT, background=True)
        run.watch(see)
        assert eventually(lambda: shown[-1] > 30, 60)
        assert len(shown) < 15, shown
        run.cancel()
        assert run.wait(60)
        assert run.outcomes[0].kind == "interrupted"
        assert len(shown) < 20, "none was queued"
        assert cluster.run("made").values[0] - shown[-1] in (0, 1)  # the last one may have been interrupted
    cluster.run("import torch\nx = torch.arange(12_500_000)")
    with hosts.nodes[0].sending_at("800mbit"):
        pulled = cluster.pull("x")[0]
    assert bool((pulled == pulled.new_ones(len(pulled)).cumsum(0) - 1).all())
    cluster.stop()


def test_folders_are_those_of_the_host(there: There, tmp_path: Path) -> None:
    """A relative one is where a cell there would find it, although this process is somewhere else."""
    cluster, where = there.start("a"), f"/tmp/{tmp_path.name}"  # each host has a /tmp of its own
    cluster.run(f"import os; os.makedirs({where!r}, exist_ok=True); os.chdir({where!r}); kept = rank + 1")
    saved = cluster.save("session", "kept")
    assert Path(saved.folder).parent == Path(where, "session")
    cluster.run("del kept")
    assert cluster.load("session").folder == saved.folder
    assert cluster.run("kept").values == {0: 1, 1: 2}


def test_a_controller_that_dies_there_is_started_again_there(there: There) -> None:
    cluster = there.start("a")
    cluster.run("kept = rank + 40")
    link = cluster.asynchronous.link
    run = cluster.run("import time\nfor n in range(40): time.sleep(0.1)\nn", background=True)
    assert eventually(lambda: all(at.doing.line for at in cluster.look().values())), "its ranks have begun it"
    there.named("a", "controller").kill()
    assert eventually(lambda: link.lost)
    assert run.wait(60)
    run.check()
    assert run.values == {0: 39, 1: 39}
    assert cluster.run("kept").values == {0: 40, 1: 41}
    kill_login("a")
    assert eventually(lambda: connection("a").is_away)
    there.named("a", "controller").kill()
    link = cluster.asynchronous.link
    assert is_back("a")
    assert eventually(lambda: link.lost)
    assert cluster.run("kept + 1").values == {0: 41, 1: 42}
    cluster.stop()


def test_a_full_disk_there_is_named_and_everything_goes_on_once_there_is_room(
    there: There, hosts: Bed, tmp_path: Path
) -> None:
    node, runtime = hosts.nodes[0], there.sshd.runtime("a")
    (tmp_path / "synced.py").write_text("A = 1\n")
    with node.small_disk(runtime, node.tmp) as disk:
        disk.fill()
        with pytest.raises(LaunchError, match=rf"^a: .*No space left.*make room in {runtime}"):
            there.start("a")
        disk.free()
        cluster = there.start("a")
        cluster.run("kept = rank + 40")
        run = cluster.run(COUNT.format(n=30), background=True)
        assert eventually(lambda: run.state == "running")
        disk.fill()
        with pytest.raises(UsageError, match=rf"node 0 .*No space left.*make room in {node.tmp}"):
            cluster.sync(str(tmp_path))
        with pytest.raises(LaunchError, match=rf"^a: .*make room in {runtime}"):
            cluster.add_node(1)
        assert run.wait(60)
        assert [lines(o.stdout) for o in run.outcomes.values()] == [[f"line {n}" for n in range(30)]] * 2
        link = cluster.asynchronous.link
        there.named("a", "controller").kill()
        assert eventually(lambda: link.lost)
        with pytest.raises(jdist.ConnectionLost, match=rf"write its files: .*make room in {runtime}"):
            cluster.run("kept")
        disk.free()
        assert cluster.run("kept").values == {0: 40, 1: 41}
        cluster.sync(str(tmp_path))
        assert cluster.run("import synced; synced.A").values == {0: 1, 1: 1}
        cluster.stop()


def test_while_it_is_broken_a_cell_is_refused_with_the_reason_and_an_interrupt_is_sent_later(
    there: There, hosts: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "_NEEDED", 2.0)
    cluster = there.start("a")
    notices: list[str] = []
    cluster.asynchronous.watch(lambda m: notices.append(str(m)))
    run = cluster.run("import time\nwhile True: time.sleep(0.1)", ranks=[0], background=True)
    assert eventually(lambda: run.state == "running")
    hosts.cut(0)
    kill_login("a")
    assert eventually(lambda: connection("a").is_away)
    with pytest.raises(jdist.ConnectionLost, match="no connection to a for"):
        cluster.run("1", ranks=[1])
    run.cancel()
    assert eventually(lambda: f"run {run.number} is interrupted as soon as the connection to a is back" in notices)
    hosts.heal(0)
    assert run.wait(60)
    assert run.outcomes[0].kind == "interrupted"
    assert cluster.run("1", ranks=[1]).values == {1: 1}
    cluster.stop()


def test_a_client_that_is_killed_is_gone_at_once_on_both_sides(there: There) -> None:
    cluster = there.start("a")
    words = [sys.executable, "-c", CLIENT, COUNT.format(n=1000)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "started\n"
        ssh = psutil.Process(client.pid).children()
        assert len(cluster.status().clients) == 2
        client.kill()
    assert eventually(lambda: not any(p.is_running() for p in ssh))
    assert eventually(lambda: len(cluster.status().clients) == 1)
    assert eventually(lambda: len(there.all_named("a", "serve")) == 1)
    cluster.stop()


def test_every_event_loop_has_a_login_of_its_own(there: There) -> None:
    cluster = there.start("a")

    async def use() -> dict[int, Any]:
        other = await jdist.AsyncCluster.attach("a:c1")
        try:
            return (await other.run("rank")).values
        finally:
            await other.detach()

    for _ in range(2):
        assert asyncio.run(use()) == {0: 0, 1: 1}
    cluster.stop()


def test_after_a_break_the_user_is_asked_again_by_an_attach(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getpass", lambda _: PASSPHRASE)
    monkeypatch.setattr(host_module, "who_is_asked", lambda: "user")
    cluster = there.start("locked", nproc=1)
    kill_login("locked")
    assert eventually(lambda: "Permission denied" in connection("locked").problem, 60)
    other = jdist.attach("locked:c1")
    assert cluster.run("rank").values == other.run("rank").values == {0: 0}
    other.detach()
    cluster.stop()


def test_a_start_that_is_cancelled_ends_what_it_began_there(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDIST_AT_PYTHON", str(Path(sys.prefix, "bin", "python")))  # forked nodes take no interrupt
    starting = bridge().begin(jdist.AsyncCluster.start(1, 2, at="a", launcher="join"))[0]
    try:
        assert eventually(lambda: there.all_named("a", "controller"))
    finally:
        starting.cancel()
    assert eventually(lambda: not there.processes("a"))


def test_a_login_that_is_cancelled_leaves_nothing_and_the_next_one_works(there: There) -> None:
    for seconds in (0.0, 0.05, 0.3, 0.6):
        attaching = bridge().begin(jdist.AsyncCluster.attach(at="a"))[0]
        time.sleep(seconds)
        attaching.cancel()
        with pytest.raises(UsageError, match="there is no cluster to attach to"):
            jdist.attach(at="a")
        assert eventually(lambda: connection("a").state == "closed")
    assert eventually(lambda: not there.sshd.sessions())


SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import helper
t = torch.ones(1)
dist.all_reduce(t)
print("sum", int(t), helper.name, sys.argv[1:], flush=True)
exec(sys.argv[1])
"""


@pytest.fixture
def jobs(there: There, tmp_path: Path) -> Iterator[Jobs]:
    for jobs in jobs_in(tmp_path):
        jobs.script("train.py", SCRIPT)
        jobs.script("helper.py", "name = 'a helper'")
        jobs.script("tool.py", "import helper, sys\nprint(__name__, helper.name)\nsys.exit(5)")
        yield jobs


def test_a_job_there_prints_here_and_leaves_nothing(jobs: Jobs) -> None:
    job = jobs.start("--at", "a", "-n", "2", "train.py", "if dist.get_rank() == 1: sys.exit(7)")
    assert job.wait() == 7, job.said
    assert {line.partition("] ")[2][:14] for line in job.out} == {"sum 2 a helper"}, job.said
    job = jobs.start("-n", "1", "-m", "tool", env={**os.environ, "JDIST_AT": "a"})
    assert job.wait() == 5, job.said
    assert job.out == ["[0] __main__ a helper"]
    job = jobs.start("--at", "a", "--hostfile", "/no/hosts", "--launcher", "ssh", "train.py", "pass")
    assert job.wait() == 1, job.said
    assert "/no/hosts" in job.said


def test_a_job_there_misses_nothing_while_its_login_is_broken_and_ends_by_a_signal(jobs: Jobs) -> None:
    def break_login() -> None:
        for child in psutil.Process(job.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == "ssh":
                    child.kill()

    job = jobs.start("--at", "a", "-n", "1", "train.py", COUNT.format(n=50))
    job.until("line 3")
    break_login()
    assert job.wait() == 0, job.said
    assert [line for line in job.out if "line" in line][1:] == [f"[0] line {n}" for n in range(50)]
    assert "is back after" in job.said

    waits = "try: time.sleep(1000)\nfinally: print('cleaned up', flush=True)"
    job = jobs.start("--at", "a", "-n", "1", "train.py", waits)
    job.until("sum 1")
    break_login()
    job.signal(signal.SIGTERM)
    assert job.wait() == 143, job.said
    assert "[0] cleaned up" in job.out, job.said


def test_a_script_runs_in_the_live_session_of_a_cluster_there(there: There, jobs: Jobs) -> None:
    cluster = there.start("a")
    cluster.run("kept = 4")
    for words in (["--at", "a", "train.py"], ["-r", "0-1", "--cluster", "a:c1", "train.py"]):
        job = jobs.start(*words, "import __main__; done = True")
        assert job.wait() == 0, job.said
        assert "ranks 0-1" in job.said or "[0-1]" in job.said, job.said
    assert cluster.run("kept, done").values == dict.fromkeys(range(2), (4, True))
    cluster.stop()


def test_a_job_there_that_is_held_says_how_to_attach(there: There, jobs: Jobs) -> None:
    job = jobs.start("--at", "a", "-n", "1", "--name", "held", "--hold", "train.py", "1 / 0")
    job.until(r"%dist attach a:held  +in a notebook on any host from which ssh reaches a")
    cluster = jdist.attach("a:held")
    assert cluster.run("t.item()").values == {0: 1.0}
    cluster.stop()
    assert job.wait() == 1, job.said


def test_nodes_are_added_and_brought_back_there(there: There) -> None:
    cluster = there.start("a", nproc=1)
    cluster.run("kept = 5")
    resized = cluster.add_node(2)
    assert (resized.world_size, resized.added, resized.renumbered) == (3, (1, 2), {0: 0})
    assert cluster.run("dist.get_world_size()").values == dict.fromkeys(range(3), 3)
    with pytest.raises(LaunchError, match=r"^a: there is no launcher 'slrm'"):
        cluster.add_node(launcher="slrm")
    with pytest.raises(LaunchError, match=r"^a: --host b: --launcher local chooses the host by itself"):
        cluster.add_node(host="b")
    place = cluster.topology.place(2)
    cluster.run(cause_fault("kill_agent"), ranks=[2], background=True)
    assert eventually(lambda: not cluster.facts.hostnames[place], 30)
    cluster.restart()
    assert cluster.run("dist.get_world_size()").values == dict.fromkeys(range(3), 3)
    cluster.stop()


def test_doctor_there_examines_a_cluster_and_starts_none_here(there: There) -> None:
    def doctor(*words: str) -> str:
        command = [sys.executable, "-m", "jdist", "doctor", "--at", "a", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        return done.stdout + done.stderr

    assert "a: there is no cluster to attach to" in doctor()
    assert "jdist doctor --at a examines a cluster that runs there; to examine nodes" in doctor("-n", "2")
    there.start("a", nproc=1).detach()
    assert "starting a temporary cluster" not in (said := doctor())
    assert "node 0" in said, said
    there.clusters[0] = jdist.attach(at="a")


@pytest.mark.parametrize(("host", "at", "code"), [("a", "begun", 130), ("locked", "passphrase", 130)])
def test_ctrl_c_in_a_terminal_ends_the_job_there_and_not_the_login_by_itself(
    jobs: Jobs, host: str, at: str, code: int
) -> None:
    waits = "try: time.sleep(1000)\nfinally: print('cleaned up', flush=True)"
    words = run_words("--at", host, "-n", "1", "train.py", f"print('begun', flush=True)\n{waits}")
    main, terminal = pty.openpty()
    ends = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with subprocess.Popen(["setsid", "--ctty", "--wait", *words], cwd=jobs.directory, **ends) as job:
        os.close(terminal)
        said, is_sent = "", False
        with contextlib.suppress(OSError):  # the terminal's end
            while select.select([main], [], [], 90)[0]:  # else it hangs: it is shown what it said
                said += os.read(main, 4096).decode()
                if at in said and not is_sent:
                    is_sent = os.write(main, b"\x03") == 1
        os.close(main)
        assert job.wait(60) == code, said
    assert "broke" not in said
    assert ("cleaned up" in said) is (host == "a"), said


def test_a_job_there_outlives_its_command(there: There, jobs: Jobs) -> None:
    job = jobs.start("--at", "a", "-n", "1", "train.py", COUNT.format(n=100))
    job.until("line 1")
    job.signal(signal.SIGKILL)
    job.wait()
    cluster = jdist.attach("a:c1")
    there.clusters.append(cluster)
    run = cluster.follow(1)
    assert run.wait(60)
    assert run.outcomes[0].ok
    assert cluster.run("i").values == {0: 99}
    assert cluster.run("import os; os.getcwd()").values == {0: str(Path("~root").expanduser())}
    cluster.stop()
