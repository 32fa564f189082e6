"""Routes that act on a cluster's nodes: add some, copy code to them, examine them. See ``routes`` for all of them."""

import os

from tornado import web

from jdist.client.cluster import AsyncCluster
from jdist.client.doctor.diagnosis import Diagnosis
from jdist.client.sync.code_sync import Synced
from jdist.notebook.text.doctor_text import findings_first
from jdist.server.handler import ANSWER_TIMEOUT, RESULT_TIMEOUT, Handler
from jdist.server.routing import route


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
