"""Routes: the server's REST interface for browsers, each for authenticated and authorized users. All lie under
``{base_url}jdist/``.

::

    GET    clusters                        read      all clusters, without their ranks
    POST   clusters                        write     start one: {"nproc_per_node": 2, …}; answers 202
    GET    clusters/NAME                   read      all that is known of one
    DELETE clusters/NAME                   write     stop it; cancel its start; forget a start that failed
    POST   clusters/NAME/instructions      execute   what to run on nodes so that they join; holds a key
    GET    clusters/NAME/nodes             read      by which launcher nodes can be added, and how many ranks one has
    POST   clusters/NAME/nodes             execute   add some: {"count": 2, "nproc": 4} or {"hosts": "a:2,b"}; 202
    DELETE clusters/NAME/nodes             execute   cancel that; nodes that have joined stay
    POST   clusters/NAME/sync              execute   {"path": "src"}: copy this server's file or folder to all nodes
    POST   clusters/NAME/doctor            execute   examine its nodes and the network between them; findings first
    GET    clusters/NAME/attach            read      the lines of a notebook's cell that attaches to it
    POST   clusters/NAME/interrupt         execute   {"ranks": "0-1"} or {"run": 7}, or nothing: all
    POST   clusters/NAME/restart           execute   {"ranks": "0-1"} or nothing: all
    POST   clusters/NAME/pause             execute   {"ranks": "0-1"} or nothing: all
    POST   clusters/NAME/resume            execute   {"ranks": "0-1", "how": "next", "line": 12}; how: "continue"
    GET    clusters/NAME/stacks            read      the stacks of its paused ranks, as one tree
    GET    clusters/NAME/resources         read      ?seconds=300&points=120: what its nodes and ranks used in that time
    GET    clusters/NAME/variables         read      ?pattern=loss*: its ranks' variables (metadata only)
    POST   clusters/NAME/variables/show    execute   {"name": "loss"}: its contents by rank
    POST   clusters/NAME/variables/check   execute   {"name": "loss"}: whether its contents are equal on all ranks
    POST   clusters/NAME/variables/delete  execute   {"name": "loss", "ranks": "0-1"}
    POST   clusters/NAME/frame             execute   {"ranks": "0-1", "index": 2}: cells run there; 0: outermost row
    POST   clusters/NAME/revive            execute   start its controller again after it has died
    GET    clusters/NAME/trace             read      ?run=N (default: the last): its torch.distributed calls
    GET    clusters/NAME/runs/N            read      what a cell shows of the run, and its metrics, as MIME bundles
    POST   clusters/NAME/cells             execute   {"code": …, "ranks": "2"}: run it there; what a cell shows of it
    GET    clusters/NAME/ranks/R/logs      read      ?lines=200
    GET    clusters/NAME/ranks/R/stack     read      the stack of its main thread
    GET    clusters/NAME/ranks/R/source    read      ?file=PATH: a file on the stack of a paused rank
    GET    clusters/NAME/ranks/R/console   read      how to attach a terminal, on its node or on this server
    GET    launch                          read      hosts, launchers, limits and defaults of a start
    POST   hosts/HOST/login                execute   log in there by ssh: {"python": "ml", "install": true}, or nothing;
                                                     with {"question": 3, "answer": …}: go on
    DELETE hosts/HOST/login                execute   cancel that

A cluster of another host is called HOST:NAME. It is followed while pages ask for it, each at least every five minutes
(GET clusters/HOST:NAME), and a login that this needs asks nothing. For users without execute that is so only at hosts
that are or were in use already; elsewhere there is no such cluster to them. The hosts of GET launch are for users with
execute. What ssh asks in a login that was posted is in the answer:
{"state": "asks", "text": …, "question": 3, "is_secret": true}; ask again with {"question": 0} while it is "connecting".
``python`` is the Python there, a path or the name of a conda environment, for this login and later ones of the server;
with ``install``, an environment with jdist is made there if it is missing.

If a request concerns the output of a run, ``cluster`` (in the query or in the body) is the id of its cluster, since
another cluster may have the same name by now.

Errors are ``{"message": …, "reason": …}``. 400: the request is invalid; 404: there is no such cluster; 410: another
cluster has its name; 502: the cluster does not answer or could not be started; 504: it timed out. 202 is not an error:
the request is in progress, and events report its result.
"""

import asyncio
import contextlib
import importlib.util
import os
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import entry_points
from typing import get_args

from tornado import web

from jdist.client.attachment import Ranks
from jdist.client.cluster import AsyncCluster
from jdist.client.debug import Stacks, listed, merge
from jdist.client.doctor.findings import Diagnosis
from jdist.client.measure.columns import columns
from jdist.client.remote.known_hosts import configured_hosts
from jdist.client.remote.login import COMMAND
from jdist.client.sync import Synced
from jdist.core.errors import UsageError
from jdist.core.messages.nodes import MOST_SECONDS
from jdist.core.messages.observation import StepKind
from jdist.core.ranks import RankSet, ranks_by
from jdist.launch.base import ENTRY_POINTS
from jdist.notebook.output.render import Bundle, recorded_bundle
from jdist.notebook.text.diagnosis_text import findings_first
from jdist.server.handler import ANSWER_TIMEOUT, RESULT_TIMEOUT, Handler, route
from jdist.server.remote_hosts import read_login
from jdist.server.snapshots import (
    ConsoleCommands,
    LaunchOptions,
    LoginState,
    RanksText,
    StacksSnapshot,
    resources_snapshot,
    value_rows,
    variables_snapshot,
)
from jdist.server.starts import form_of


@route("GET", "clusters/NAME/nodes")
async def _show_adding(handler: Handler, name: str) -> None:
    handler.check(name)
    handler.send(await handler.cross(handler.clusters.adding_options(name), ANSWER_TIMEOUT))


@route("POST", "clusters/NAME/nodes", "execute")
async def _add_nodes(handler: Handler, name: str) -> None:
    handler.check(name)
    number = await handler.cross(handler.clusters.add_nodes(name, handler.body()))
    handler.send({"number": number, "state": "under way"}, 202)


@route("DELETE", "clusters/NAME/nodes", "execute")
async def _end_adding(handler: Handler, name: str) -> None:
    handler.check(name)
    await handler.cross(handler.clusters.end_adding(name))
    handler.send_done(is_done=True)


@route("POST", "clusters/NAME/sync", "execute")
async def _sync(handler: Handler, name: str) -> None:
    """The files are those of this server, as its file browser shows them."""
    body = handler.body()
    path, exclude = body.get("path"), body.get("exclude", [])
    if not isinstance(path, str) or not path.strip():
        raise web.HTTPError(400, "path: a file or folder of this server")
    if not isinstance(exclude, list) or not all(isinstance(each, str) for each in exclude):
        raise web.HTTPError(400, "exclude: a list of patterns")
    where = _on_server(path.strip(), handler.settings["server_root_dir"])

    async def sync(cluster: AsyncCluster) -> Synced:
        return await cluster.sync(where, exclude=exclude)

    handler.check(name)
    work = handler.clusters.act(name, sync, ANSWER_TIMEOUT, _describe_synced)
    found = await handler.cross(work)
    if found is None:
        handler.send_done(is_done=False)
    else:
        handler.send({"text": _describe_synced(found)})


def _on_server(path: str, root: str) -> str:
    """The path, which may be relative to the folder that the file browser shows first."""
    return os.path.join(root, os.path.expanduser(path))


def _describe_synced(synced: Synced) -> str:
    return f"synced {synced}"


@route("POST", "clusters/NAME/doctor", "execute")
async def _examine(handler: Handler, name: str) -> None:
    async def examine(cluster: AsyncCluster) -> Diagnosis:
        return await cluster.doctor()

    found = await handler.ask(name, examine, "the nodes", RESULT_TIMEOUT)
    handler.send({"text": findings_first(found), "is_well": found.is_well})


_MOST_LINES = 2000
_CELL = 5.0  # Seconds for which a cell's end is waited for.
_STEP = 1.0  # Seconds in which a step mostly is over; events report the rest.


@route("GET", "clusters")
async def _list_clusters(handler: Handler) -> None:
    handler.send({"clusters": await handler.cross(handler.clusters.list(), ANSWER_TIMEOUT)})


@route("POST", "clusters")
async def _start(handler: Handler) -> None:
    name = await handler.cross(handler.clusters.start(handler.body()))
    handler.send({"name": name, "state": "starting"}, 202)


@route("GET", "clusters/NAME")
async def _show_cluster(handler: Handler, name: str) -> None:
    work = handler.clusters.detail(name, may_log_in=await handler.may("execute"))
    found = await handler.cross(work, ANSWER_TIMEOUT)
    if found is None:
        raise web.HTTPError(404, f"there is no cluster called {name}")
    handler.send(found)


@route("DELETE", "clusters/NAME")
async def _stop(handler: Handler, name: str) -> None:
    handler.check(name)
    handler.send_done(await handler.cross(handler.clusters.stop(name, ANSWER_TIMEOUT)))


@route("POST", "clusters/NAME/instructions", "execute")
async def _show_instructions(handler: Handler, name: str) -> None:
    handler.check(name)
    about, _, line = (await handler.cross(handler.clusters.instructions(name))).rpartition("\n")
    handler.set_header("Cache-Control", "no-store")
    handler.send({"about": about, "line": line})


@route("GET", "clusters/NAME/attach")
async def _show_attach(handler: Handler, name: str) -> None:
    handler.check(name)
    python = handler.clusters.elsewhere.python_of(name)
    named = f" --python {shlex.quote(python)}" if python else ""
    handler.send({"code": f"%load_ext jdist\n%dist attach {name}{named}"})


@route("POST", "clusters/NAME/interrupt", "execute")
async def _interrupt(handler: Handler, name: str) -> None:
    run = handler.body().get("run", 0)
    if type(run) is not int or run < 0:
        raise web.HTTPError(400, "run: a run's number")
    await _apply(handler, name, lambda cluster, ranks: cluster.interrupt(ranks, run=run))


@route("POST", "clusters/NAME/restart", "execute")
async def _restart(handler: Handler, name: str) -> None:
    await _apply(handler, name, AsyncCluster.restart)


async def _apply(handler: Handler, name: str, change: Callable[[AsyncCluster, Ranks], Awaitable[object]]) -> None:
    """Apply ``change`` to the ranks that the body names."""
    ranks = handler.ranks()
    handler.check(name, handler.body().get("cluster"))

    async def apply(cluster: AsyncCluster) -> bool:
        await change(cluster, ranks)
        return True

    handler.send_done(bool(await handler.cross(handler.clusters.act(name, apply, ANSWER_TIMEOUT))))


@route("POST", "clusters/NAME/pause", "execute")
async def _pause(handler: Handler, name: str) -> None:
    await _apply(handler, name, AsyncCluster.pause)


@route("POST", "clusters/NAME/resume", "execute")
async def _resume(handler: Handler, name: str) -> None:
    body = handler.body()
    how, line = body.get("how", "continue"), body.get("line", 0)
    if how not in get_args(StepKind) or type(line) is not int:
        raise web.HTTPError(400, f"how: one of {', '.join(get_args(StepKind))}; line: a number")
    await _apply(handler, name, lambda cluster, ranks: cluster.resume(how, ranks, line=line, timeout=_STEP))


@route("GET", "clusters/NAME/stacks")
async def _show_stacks(handler: Handler, name: str) -> None:
    async def where(cluster: AsyncCluster) -> Stacks:
        try:
            return await cluster.where()
        except UsageError:  # no rank is paused any more
            return Stacks({}, {})

    found = await handler.ask(name, where, "the ranks")
    handler.send(StacksSnapshot(merge(found), group_ranks(found.others)))


@route("POST", "clusters/NAME/frame", "execute")
async def _choose_frame(handler: Handler, name: str) -> None:
    index = handler.body().get("index")
    if type(index) is not int or index < 0:
        raise web.HTTPError(400, "index: a frame's number, from 0 for the outermost")

    async def choose(cluster: AsyncCluster, ranks: Ranks) -> None:
        stacks = await cluster.where(ranks)
        frames = {rank: those[index] for rank, stack in stacks.items() if index < len(those := listed(stack))}
        if not frames:
            raise UsageError(f"no stack has {index + 1} frames")
        for frame, those in ranks_by(sorted(frames.items())).items():
            await cluster.choose_frame(frame, list(those))

    await _apply(handler, name, choose)


@route("GET", "clusters/NAME/resources")
async def _show_resources(handler: Handler, name: str) -> None:
    seconds, points = handler.number("seconds", "300", 1, MOST_SECONDS), handler.number("points", "120", 1, 2000)
    found = await handler.ask(name, lambda cluster: cluster.resources(seconds, points), "the nodes")
    handler.send(resources_snapshot(found))


@route("GET", "clusters/NAME/variables")
async def _list_variables(handler: Handler, name: str) -> None:
    pattern = handler.get_query_argument("pattern", "")
    handler.send(variables_snapshot(await handler.ask(name, lambda cluster: cluster.variables(pattern), "the ranks")))


@route("POST", "clusters/NAME/variables/show", "execute")
async def _show_variable(handler: Handler, name: str) -> None:
    variable = _variable_name(handler)
    found = await handler.ask(name, lambda cluster: cluster.show(variable), "the ranks", RESULT_TIMEOUT)
    handler.send({"values": value_rows(found)})


@route("POST", "clusters/NAME/variables/check", "execute")
async def _check_variable(handler: Handler, name: str) -> None:
    variable = _variable_name(handler)
    found = await handler.ask(name, lambda cluster: cluster.check(variable), "the ranks", RESULT_TIMEOUT)
    handler.send({"is_equal": found.is_equal, "text": str(found)})


@route("POST", "clusters/NAME/variables/delete", "execute")
async def _delete_variable(handler: Handler, name: str) -> None:
    variable = _variable_name(handler)
    await _apply(handler, name, lambda cluster, ranks: cluster.delete(variable, ranks))


def _variable_name(handler: Handler) -> str:
    """The body's name, which is one: an expression would run code that the user has not written."""
    name = handler.body().get("name")
    if not isinstance(name, str) or not name.isidentifier():
        raise web.HTTPError(400, "name: a variable's name")
    return name


@route("POST", "clusters/NAME/revive", "execute")
async def _revive(handler: Handler, name: str) -> None:
    handler.check(name)
    await handler.cross(handler.clusters.revive(name))
    handler.send_done(is_done=True)


@route("GET", "clusters/NAME/trace")
async def _show_trace(handler: Handler, name: str) -> None:
    run = handler.number("run", "0", 0, 10**9 - 1)
    handler.check(name, handler.get_query_argument("cluster", ""))
    found = await handler.ask(name, lambda cluster: cluster.trace(run), "the ranks", RESULT_TIMEOUT)
    handler.send(columns(found.report, name))


@route("GET", "clusters/NAME/runs/N")
async def _show_run(handler: Handler, name: str, number: str) -> None:
    handler.check(name, handler.get_query_argument("cluster", ""))

    async def read(cluster: AsyncCluster) -> dict[str, Bundle]:
        run = await cluster.read_run(int(number))
        shown = {"data": await asyncio.to_thread(recorded_bundle, cluster, run)}
        return {**shown, "metrics": await asyncio.to_thread(run.metrics.bundle)} if len(run.metrics) else shown

    handler.send(await handler.ask(name, read, "the controller"))


@route("POST", "clusters/NAME/cells", "execute")
async def _run_cell(handler: Handler, name: str) -> None:
    """For a cell that has to run while the notebook waits for another one. It is shown as far as it is by then."""
    body, ranks = handler.body(), handler.ranks()
    code = body.get("code")
    if not isinstance(code, str) or not code.strip():
        raise web.HTTPError(400, "code: the text of a cell")
    handler.check(name, body.get("cluster"))

    async def run(cluster: AsyncCluster) -> Bundle:
        cell = await cluster.submit(code, cluster.select(ranks))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CELL):
                await cell
        return await asyncio.to_thread(recorded_bundle, cluster, await cluster.read_run(cell.number))

    handler.send({"data": await handler.ask(name, run, "the ranks")})


@route("GET", "clusters/NAME/ranks/R/logs")
async def _show_logs(handler: Handler, name: str, rank: str) -> None:
    lines = handler.number("lines", "200", 1, _MOST_LINES)
    found = await handler.ask(name, lambda cluster: cluster.logs(int(rank), lines), f"rank {rank}'s node")
    handler.send({"text": found.text, "path": found.path})


@route("GET", "clusters/NAME/ranks/R/stack")
async def _show_stack(handler: Handler, name: str, rank: str) -> None:
    handler.send({"text": await handler.ask(name, lambda cluster: cluster.stack(int(rank)), f"rank {rank}")})


@route("GET", "clusters/NAME/ranks/R/source")
async def _show_source(handler: Handler, name: str, rank: str) -> None:
    file = handler.get_query_argument("file")
    handler.send({"text": await handler.ask(name, lambda cluster: cluster.source(file, int(rank)), f"rank {rank}")})


@route("GET", "clusters/NAME/ranks/R/console")
async def _show_console(handler: Handler, name: str, rank: str) -> None:
    found = await handler.ask(name, lambda cluster: cluster.console(int(rank)), f"rank {rank}'s node")
    here, reason = console_command(found.hostname, found.connection_file)
    command = f"jupyter console --existing {found.connection_file}"
    handler.send(ConsoleCommands(found.hostname, command, here, reason))


@route("POST", "hosts/HOST/login", "execute")
async def _log_in(handler: Handler, host: str) -> None:
    """What was typed is passed on to ssh, and kept nowhere."""
    body = handler.body()

    async def log_in() -> LoginState:
        return await handler.clusters.elsewhere.use(host).login(read_login(body))

    handler.set_header("Cache-Control", "no-store")
    handler.send(await handler.cross(log_in()))


@route("DELETE", "hosts/HOST/login", "execute")
async def _end_login(handler: Handler, host: str) -> None:
    await handler.cross(handler.clusters.elsewhere.end_login(host))
    handler.send_done(is_done=True)


@route("GET", "launch")
async def _show_launch(handler: Handler) -> None:
    policy = handler.clusters.policy
    installed = sorted({point.name for point in entry_points(group=ENTRY_POINTS)})
    ranks_here = await handler.cross(handler.clusters.ranks_here(), ANSWER_TIMEOUT)
    launchers = policy.launchers(installed)
    forms = await asyncio.to_thread(lambda: {name: form_of(name) for name in launchers})
    hosts: list[str] = []
    if await handler.may("execute"):
        hosts = await asyncio.to_thread(configured_hosts, os.environ.get(COMMAND, "ssh"))
    handler.send(LaunchOptions(launchers, forms, policy.max_ranks, ranks_here, policy.default_args, hosts))


def group_ranks(texts: Mapping[int, str]) -> list[RanksText]:
    """The ranks by their texts."""
    alike = sorted(ranks_by(sorted(texts.items())).items(), key=lambda item: item[1])
    return [RanksText(str(RankSet(ranks)), text) for text, ranks in alike]


def console_command(hostname: str, connection_file: str, program: str = "jupyter_console") -> tuple[str, str]:
    """``(command, "")`` for a terminal of this server, or ``("", why)``: a kernel listens only on sockets of its node.

    The command names the file, not the key in it, and this interpreter, since a terminal's shell may find another one.
    """
    if hostname != socket.gethostname() or not os.access(connection_file, os.R_OK):
        return "", f"the rank is on {hostname}, and this server on {socket.gethostname()}"
    if importlib.util.find_spec(program) is None:
        return "", "jupyter_console is not installed beside the Jupyter server: pip install jupyter-console"
    return shlex.join([sys.executable, "-m", program, "--existing", connection_file]), ""
