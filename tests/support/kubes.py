"""Kubes: an API server of the tests' own, with Services, Secrets, StatefulSets and pods in memory, and watches on them.

Every object that is sent to it is checked against the published schema, strictly. Its controller is as simple as can
be: a StatefulSet has its pods, and a pod that is deleted is made again. What becomes of a pod the test says, or, with
``runs``, the pods' containers are really run: as processes of this machine, started again when they end.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import queue
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

Object = dict[str, Any]

_PATH = re.compile(
    r"/(?:api/v1|apis/apps/v1)/namespaces/(?P<ns>[^/]+)/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
_TOKEN = "the-tests-token"
KUBERNETES = "1.37.0"
"""The version whose schemas objects are checked against."""
_RESTARTS = 0.5
"""Seconds until a container is started again."""


def check(given: Object) -> None:
    """Raises for what the API server of that version would refuse: what is unknown, missing or of a wrong type."""
    kubernetes_validate.validate(given, KUBERNETES, strict=True)


class Kubes:
    """The server; ``url`` is where it listens. Use as a context."""

    def __init__(self, directory: Path, *, runs: bool = False):
        self._directory = directory
        self._runs = runs
        self._lock = threading.RLock()
        self.objects: dict[tuple[str, str], Object] = {}
        """By kind and name."""
        self.logs: dict[str, str] = {}
        """What a pod's last container said."""
        self.requests: list[str] = []
        self.refuses: dict[str, tuple[int, str]] = {}
        """Status and message for a verb and kind, such as "POST statefulsets"."""
        self._versions = itertools.count(1)
        self._history: list[tuple[str, Object]] = []
        self._watches: list[tuple[str, queue.SimpleQueue[Object | None]]] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._keepers: list[threading.Thread] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Kubes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.objects.clear()
            for _kind, events in self._watches:
                events.put(None)
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
        for keeper in self._keepers:
            keeper.join(10)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def write_kubeconfig(self, path: Path, namespace: str = "lab") -> None:
        """As `kubectl config` would."""
        known = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": _TOKEN}}],
        }
        path.write_text(json.dumps(known))

    # ------------------------------------------------------------ for the tests

    def names(self, kind: str) -> list[str]:
        with self._lock:
            return sorted(name for k, name in self.objects if k == kind)

    def set_status(self, name: str, **status: Any) -> None:
        """What becomes of a pod."""
        with self._lock:
            pod = self.objects["pods", name]
            pod["status"] = {"phase": "Pending", **status}
            self._changed("MODIFIED", "pods", pod)

    def uid(self, name: str) -> str:
        with self._lock:
            return str(self.objects["pods", name]["metadata"]["uid"])

    def kill(self, name: str) -> None:
        """The pod's container, at once."""
        os.killpg(self._processes[name].pid, 9)

    # ------------------------------------------------------------ objects

    def _changed(self, event: str, kind: str, what: Object) -> None:
        what["metadata"]["resourceVersion"] = str(next(self._versions))
        told = {"type": event, "object": json.loads(json.dumps(what))}
        self._history.append((kind, told))
        for watched, events in self._watches:
            if watched == kind:
                events.put(told)

    def create(self, kind: str, namespace: str, given: Object) -> tuple[int, Object]:
        check(given)
        name = given["metadata"]["name"]
        with self._lock:
            if (kind, name) in self.objects:
                return 409, _status(409, f'{kind} "{name}" already exists')
            self._add(kind, namespace, given)
            if kind == "statefulsets":
                for ordinal in range(given["spec"]["replicas"]):
                    self._make_pod(given, ordinal)
        return 201, given

    def _add(self, kind: str, namespace: str, given: Object) -> None:
        given["metadata"] |= {"namespace": namespace, "uid": f"u{next(self._versions)}"}
        self.objects[kind, given["metadata"]["name"]] = given
        self._changed("ADDED", kind, given)

    def _make_pod(self, owner: Object, ordinal: int) -> None:
        template = json.loads(json.dumps(owner["spec"]["template"]))
        name = f"{owner['metadata']['name']}-{ordinal}"
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "status": {"phase": "Pending"}}
        pod["metadata"]["name"] = name
        check({k: v for k, v in pod.items() if k != "status"})
        self._add("pods", owner["metadata"]["namespace"], pod)
        if self._runs:
            keeper = threading.Thread(target=self._keep, args=(name, pod), daemon=True)
            self._keepers.append(keeper)
            keeper.start()

    def delete(self, kind: str, name: str) -> tuple[int, Object]:
        with self._lock:
            gone = self.objects.pop((kind, name), None)
            if gone is None:
                return 404, _status(404, f'{kind} "{name}" not found')
            self._changed("DELETED", kind, gone)
            if kind == "statefulsets":
                for pod in self.names("pods"):
                    if pod.rpartition("-")[0] == name:
                        self.delete("pods", pod)
            elif kind == "pods":
                if name in self._processes:
                    with contextlib.suppress(ProcessLookupError):
                        self._processes[name].terminate()
                owner, _, ordinal = name.rpartition("-")
                if ("statefulsets", owner) in self.objects:
                    self._make_pod(self.objects["statefulsets", owner], int(ordinal))
        return 200, _status(200, "deleted")

    # ------------------------------------------------------------ containers

    def _keep(self, name: str, pod: Object) -> None:
        """Run the pod's container, again and again, as long as the pod is there."""
        restarts, last = 0, {}
        while True:
            with self._lock:
                if self.objects.get(("pods", name)) is not pod:
                    return
                process = self._start(name, pod, restarts)
                self._processes[name] = process
                self._container(name, {"running": {}}, last, restarts)
            code = process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            with self._lock:
                if self.objects.get(("pods", name)) is not pod:
                    return
                last = {"terminated": {"exitCode": code}}
                self.logs[name] = (self._directory / f"{name}.{restarts}.log").read_text(errors="replace")
                restarts += 1
                if restarts > 1:
                    self._container(name, {"waiting": {"reason": "CrashLoopBackOff"}}, last, restarts)
            threading.Event().wait(_RESTARTS)

    def _container(self, name: str, state: Object, last: Object, restarts: int) -> None:
        told = {"name": "agent", "state": state, "lastState": last, "restartCount": restarts}
        self.set_status(name, phase="Running", containerStatuses=[told])

    def _start(self, name: str, pod: Object, restarts: int) -> subprocess.Popen[bytes]:
        """The command as the template has it; the Secret's files lie elsewhere than in the pod."""
        (container,) = pod["spec"]["containers"]
        words = list(container["command"])
        for volume in pod["spec"]["volumes"]:
            if "secret" not in volume:
                continue
            mount = next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == volume["name"])
            inside = self._directory / name
            inside.mkdir(mode=0o700, exist_ok=True)
            for key, text in self.objects["secrets", volume["secret"]["secretName"]]["data"].items():
                (inside / key).write_bytes(base64.b64decode(text))
                (inside / key).chmod(volume["secret"]["defaultMode"])
            words = [w.replace(mount, str(inside)) for w in words]
        env = {e["name"]: e["value"] if "value" in e else pod["metadata"]["name"] for e in container["env"]}
        with open(self._directory / f"{name}.{restarts}.log", "wb") as log:
            return subprocess.Popen(words, env={**os.environ, **env}, stdout=log, stderr=log, start_new_session=True)

    # ------------------------------------------------------------ HTTP

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        kubes = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self, status: int, body: Object | str) -> None:
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _serve(self) -> None:
                where, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
                found = _PATH.fullmatch(where.path)
                size = int(self.headers.get("Content-Length") or 0)
                given = json.loads(self.rfile.read(size)) if size else {}
                kubes.requests.append(f"{self.command} {where.path}")
                if self.headers.get("Authorization") != f"Bearer {_TOKEN}":
                    self._answer(401, _status(401, "Unauthorized"))
                elif found is None:
                    self._answer(404, _status(404, f"no {where.path}"))
                elif f"{self.command} {found['kind']}" in kubes.refuses:
                    status, text = kubes.refuses[f"{self.command} {found['kind']}"]
                    self._answer(status, _status(status, text))
                elif query.get("watch") == ["true"] or query.get("watch") == ["True"]:
                    self._watch(found["kind"], int(query["timeoutSeconds"][0]), int(query["resourceVersion"][0]))
                else:
                    self._answer(*self._act(found, query, given))

            def _act(self, found: re.Match[str], query: Any, given: Object) -> tuple[int, Object | str]:
                kind, name = found["kind"], found["name"]
                match self.command:
                    case "POST":
                        return kubes.create(kind, found["ns"], given)
                    case "DELETE":
                        return kubes.delete(kind, name)
                    case "PATCH":
                        with kubes._lock:
                            kubes.objects[kind, name].update(given)
                            return 200, kubes.objects[kind, name]
                if found["log"]:
                    lines = kubes.logs.get(name, "").splitlines()[-int(query["tailLines"][0]) :]
                    return 200, "\n".join(lines)
                if name:
                    return 404, _status(404, "not read here")
                return 200, kubes.list(kind, query.get("labelSelector", [""])[0])

            def _watch(self, kind: str, seconds: int, version: int) -> None:
                events = kubes.watch(kind, version)
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(queue.Empty, OSError):
                    while (event := events.get(timeout=seconds)) is not None:
                        data = json.dumps(event).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                kubes.unwatch(events)
                with contextlib.suppress(OSError):
                    self.wfile.write(b"0\r\n\r\n")
                self.close_connection = True

            def do_GET(self) -> None:
                self._serve()

            do_POST = do_DELETE = do_PATCH = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        return Handler

    def list(self, kind: str, selector: str) -> Object:
        wanted = dict(pair.split("=") for pair in selector.split(",")) if selector else {}
        with self._lock:
            found = [o for (k, _), o in self.objects.items() if k == kind]
            items = [o for o in found if wanted.items() <= o["metadata"]["labels"].items()]
            version = str(next(self._versions))
            return json.loads(json.dumps({"metadata": {"resourceVersion": version}, "items": items}))

    def watch(self, kind: str, version: int) -> queue.SimpleQueue[Object | None]:
        """What changes from now on, and what has since ``version``."""
        events: queue.SimpleQueue[Object | None] = queue.SimpleQueue()
        with self._lock:
            for k, told in self._history:
                if k == kind and int(told["object"]["metadata"]["resourceVersion"]) > version:
                    events.put(told)
            self._watches.append((kind, events))
        return events

    def unwatch(self, events: queue.SimpleQueue[Object | None]) -> None:
        with self._lock:
            self._watches = [w for w in self._watches if w[1] is not events]


def _status(code: int, message: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
