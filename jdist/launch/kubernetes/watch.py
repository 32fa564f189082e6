"""Watch: a thread that follows the state of a cluster's pods."""

import contextlib
import threading
from typing import Any

from jdist.core.errors import LaunchError
from jdist.launch.kubernetes import pods as reading
from jdist.launch.kubernetes.api import REQUEST, KubeApi, events

_WATCH = 300  # Seconds after which the API server ends a watch and the thread begins another.
_AGAIN = 1.0


class PodWatch:
    """The state of the pods, kept current by a thread."""

    def __init__(self, api: KubeApi):
        self._api = api
        self._lock = threading.Lock()
        self._pods: dict[str, reading.Pod] = {}
        self._logs: dict[str, str] = {}  # End of the log of each crashing pod, by name.
        self._stream: Any = None
        self._is_over = threading.Event()
        self.trouble = ""  # Why the API server cannot be reached at the moment; "" if it can.
        self._thread = threading.Thread(target=self._follow, name="jdist-pods", daemon=True)
        self._thread.start()

    def pods(self) -> list[reading.Pod]:
        with self._lock:
            return list(self._pods.values())

    def failures(self) -> dict[int, str]:
        """Why pods failed, by node rank, with the end of the log of those that crash."""
        with self._lock:
            found = {reading.node_rank_of(p): (p, reading.failure(p)) for p in self._pods.values()}
            logs = dict(self._logs)
        return {n: f"{why}{logs.get(p['metadata']['name'], '')}" for n, (p, why) in sorted(found.items()) if why}

    def end(self) -> None:
        """End the watch, and with it the thread."""
        self._is_over.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.shutdown()
        self._thread.join(REQUEST)

    def _follow(self) -> None:
        while not self._is_over.is_set():
            try:
                self._follow_once()
            except LaunchError as e:
                self.trouble = str(e)
                self._is_over.wait(_AGAIN)
            else:
                self.trouble = ""

    def _follow_once(self) -> None:
        listed, version = self._api.list_pods()
        with self._lock:
            self._pods = {}
        for pod in listed:
            self._see(pod)
        stream = self._api.watch(version, _WATCH)
        with self._lock:
            self._stream = stream
        try:
            if self._is_over.is_set():
                return
            for event in events(stream):
                if event["type"] == "ERROR":
                    return  # the resource version has expired: list again
                self._see(event["object"], is_gone=event["type"] == "DELETED")
        finally:
            stream.close()

    def _see(self, pod: reading.Pod, *, is_gone: bool = False) -> None:
        name = pod["metadata"]["name"]
        words = self._api.last_words(name) if reading.is_crashing(pod) and not is_gone else ""
        with self._lock:
            if is_gone:
                self._pods.pop(name, None)
            else:
                self._pods[name] = pod
            self._logs[name] = f"; its last lines: {words}" if words else ""
