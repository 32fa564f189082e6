"""Nodes that are a user's named servers on a real JupyterHub."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from support.hub.jupyterhubs import Hub, Server
from support.waits import eventually

SOON = 30.0
ALL_REDUCE = "%%dist -t 60\nt = torch.ones(1) * (rank + 1)\ndist.all_reduce(t)\nt.item()"
ENVIRONMENT = """\
%%dist -t 60
import os
os.environ["COLOUR"], [k for k in os.environ if k.startswith(("JUPYTERHUB_", "JPY_"))]"""
START = "%dist start --launcher hub --backend gloo --timeout 120"


def agents(hub: Hub) -> dict[int, str]:
    return hub.processes("-m jdist join")


def test_servers_of_the_user_are_nodes_from_start_to_stop(hub: Hub, alice: Server, bob: Server) -> None:
    notebook = alice.notebook()
    shown = notebook.run(f"{START} -N 2 -n 1 --name hubbed --env COLOUR=blue")
    assert "2 ranks on 2 nodes" in shown, shown
    assert set(hub.servers("alice")) == {"", "jdist-hubbed-0", "jdist-hubbed-1"}
    assert "3.0" in notebook.run(ALL_REDUCE)
    seen = notebook.run(ENVIRONMENT)
    assert "('blue', [])" in seen, seen

    # the kernels that started the agents are gone, and the line is nowhere
    for node in ("jdist-hubbed-0", "jdist-hubbed-1"):
        assert hub.ask("GET", f"{alice.path}{node}/api/kernels", token=alice.token) == (200, [])
    for pid in hub.processes():
        for what in ("cmdline", "environ"):
            assert b"jdist1." not in Path(f"/proc/{pid}/{what}").read_bytes()
    holding = [str(p) for p in hub.home.rglob("*") if p.is_file() and b"jdist1." in p.read_bytes()]
    assert not holding, holding

    # another user of the Hub
    for path in ("", "jdist-hubbed-0/"):
        assert hub.ask("GET", f"{alice.path}{path}api/kernels", token=bob.token)[0] == 403
        assert hub.ask("POST", f"{alice.path}{path}api/kernels", {}, bob.token)[0] == 403
    assert hub.ask("GET", "/hub/api/users/alice", token=bob.token)[0] == 404
    his = bob.notebook()
    assert "no cluster is running" in his.run("%dist list")
    assert "there is no cluster called 'hubbed'" in his.run("%dist attach hubbed")
    files = [p for p in (hub.home / "alice").rglob("jdist-*") if p.is_file()]
    assert len(files) >= 4, "a connection file, a charter, two logs of agents"
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600}

    # the Hub stops a node's server: its agent ends with it, and a restart brings both back
    assert len(agents(hub)) == 2
    hub.stop_server("alice", "jdist-hubbed-1")
    assert eventually(lambda: len(agents(hub)) == 1, SOON), agents(hub)
    shown = notebook.run("%dist restart -r 1")
    assert "3.0" in notebook.run(ALL_REDUCE), shown
    assert hub.servers("alice")["jdist-hubbed-1"]["ready"]

    # whoever stops the cluster removes the servers
    other = alice.notebook()
    other.run("%dist attach hubbed")
    assert "cluster hubbed is stopped" in other.run("%dist stop")
    assert set(hub.servers("alice")) == {""}
    assert eventually(lambda: not agents(hub), SOON), agents(hub)


def test_servers_that_cannot_be_had_are_named_with_the_hubs_reason_and_nothing_is_left(
    hub: Hub, alice: Server, bob: Server
) -> None:
    notebook = alice.notebook()
    shown = notebook.run(f"{START} -N 1 -n 1 --name failing -- queue=nowhere")
    assert re.search(r"LaunchError: node 0: jdist-failing-0: .*no queue is called nowhere", shown), shown
    assert set(hub.servers("alice")) == {""}

    hub.ask("POST", "/hub/api/users/alice/servers/jdist-taken-0")
    assert eventually(lambda: hub.servers("alice")["jdist-taken-0"]["ready"], SOON * 3)
    shown = notebook.run(f"{START} -N 1 -n 1 --name taken")
    assert "jdist-taken-0 is already running" in shown, shown
    assert hub.servers("alice")["jdist-taken-0"]["ready"], "what was there before is not this cluster's to remove"

    shown = notebook.run(f"{START} -N 2 -n 1 --name many")
    assert re.search(r"node \d: jdist-many-\d: .*to start server .*maximum of 2 named servers", shown), shown
    assert "c.JupyterHub.named_server_limit_per_user" in shown
    assert set(hub.servers("alice")) == {"", "jdist-taken-0"}
    assert eventually(lambda: not agents(hub), SOON), agents(hub)
    hub.ask("DELETE", "/hub/api/users/alice/servers/jdist-taken-0", {"remove": True})

    shown = bob.notebook().run(f"{START} -N 1 -n 1")
    assert "the token lacks the scope read:servers!user" in shown, shown
    assert "c.Spawner.server_token_scopes" in shown
    assert set(hub.servers("bob")) == {""}
