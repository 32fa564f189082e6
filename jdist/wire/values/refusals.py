"""Refusals: find the part of a value that cannot be sent to another process, and say why.

Objects that exist only in one process (files, locks, threads, streams, groups) are refused by type, with what to send
instead: pickle would fail deep inside them, and cloudpickle would send an open file's content. If a user's method fails
or calls ``sys.exit``, only its value is refused.
"""

import threading
from collections.abc import Callable
from types import CodeType, MethodDescriptorType, TracebackType
from typing import Any

from jdist.core.errors import describe_error

_TRIES, _DEPTH = 100, 8  # Parts of each object, and levels, in which what cannot be pickled is searched for.
_METHODS = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")

_FILE = ("an open file", "its content, such as f.read()")
_LOCK = ("a lock", "what it guards")
_ASYNC = ("something that an event loop runs", "what it returns, awaited in a cell")
_DEVICE = ("a stream or event of a device", "what is computed on it")
# By the class that has it, with module: what it is, and what to take instead. None: it can be pickled after all.
_KINDS: dict[str, tuple[str, str] | None] = {
    "_io._IOBase": _FILE,
    "_io.StringIO": None,
    "_io.BytesIO": None,
    "tempfile._TemporaryFileWrapper": _FILE,
    "tempfile.SpooledTemporaryFile": _FILE,
    "mmap.mmap": ("a mapped file", "its bytes, such as m[:]"),
    "socket.socket": ("a socket", "what was received"),
    "_socket.socket": ("a socket", "what was received"),
    "_ssl._SSLSocket": ("a socket", "what was received"),
    "_multiprocessing.SemLock": _LOCK,
    "_thread.lock": _LOCK,
    "_thread.RLock": _LOCK,
    "threading.Condition": ("a condition between threads", "what it guards"),
    "threading.Event": ("an event between threads", "its is_set()"),
    "threading.Semaphore": ("a semaphore", "what it guards"),
    "threading.Barrier": ("a barrier of threads", "what the threads computed"),
    "_thread._local": ("data of a thread's own", "its attributes"),
    "threading.Thread": ("a thread", "what it computed"),
    "subprocess.Popen": ("a process", "its output or its returncode"),
    "multiprocessing.process.BaseProcess": ("a process", "what it computed"),
    "multiprocessing.queues.Queue": ("a queue between processes", "what comes out of it"),
    "multiprocessing.connection._ConnectionBase": ("a pipe between processes", "what comes out of it"),
    "multiprocessing.pool.Pool": ("a pool of processes", "what it computed"),
    "queue.Queue": ("a queue between threads", "what it holds, such as list(q.queue)"),
    "_queue.SimpleQueue": ("a queue between threads", "what comes out of it"),
    "concurrent.futures._base.Executor": ("an executor", "what it computed"),
    "concurrent.futures._base.Future": ("a future", "its result()"),
    "_asyncio.Future": _ASYNC,
    "builtins.coroutine": _ASYNC,
    "builtins.async_generator": _ASYNC,
    "builtins.generator": ("a generator", "what it yields, such as list(g)"),
    "builtins.frame": ("a frame of a call", "the names in it that matter"),
    "builtins.traceback": ("a traceback", "its text, by traceback.format_exc()"),
    "weakref.ReferenceType": ("a weak reference", "what it refers to"),
    "sqlite3.Connection": ("an open database", "the rows of a query"),
    "IPython.core.interactiveshell.InteractiveShell": ("the shell of this process", "the names in it that matter"),
    "torch.utils.data.dataloader._BaseDataLoaderIter": ("an iterator of a DataLoader", "a batch, such as next(it)"),
    "torch.Stream": _DEVICE,
    "torch.Event": _DEVICE,
    "torch.cuda.streams.Stream": _DEVICE,
    "torch.cuda.streams.Event": _DEVICE,
    "torch.cuda.graphs.CUDAGraph": ("a CUDA graph", "what it computes"),
    "torch.distributed.distributed_c10d.ProcessGroup": (
        "a process group",
        "its ranks, by dist.get_process_group_ranks(group)",
    ),
    "torch.distributed.distributed_c10d.Work": ("a collective under way", "its tensors, once wait() has returned"),
    "torch.distributed.distributed_c10d.Store": ("a rendezvous store", "its values, by store.get(key)"),
}


class Refused(Exception):
    """Raised within a pickler at an object of a kind that lives in its process."""

    def __init__(self, what: str, instead: str):
        super().__init__(what)
        self.what = what
        self.instead = instead


class Kinds:
    """The kinds of the classes that one pickler meets."""

    def __init__(self) -> None:
        self._known: dict[type, tuple[str, str] | None] = {}

    def check(self, obj: object) -> None:
        """Raises Refused if the object lives in its process."""
        cls = type(obj)
        if cls not in self._known:
            self._known[cls] = _kind(cls)
        kind = self._known[cls]
        if kind is not None:
            what, instead = kind
            name = getattr(obj, "name", None) if kind is _FILE and cls.__module__ == "_io" else None
            raise Refused(f"{what} ({name})" if name is not None else what, instead)


def _kind(cls: type) -> tuple[str, str] | None:
    for base in cls.__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        if name in _KINDS:
            return _KINDS[name]
        # The class defines how it is pickled. Methods in C do not count: since 3.13, those of files only raise.
        if any(not isinstance(vars(base).get(method), MethodDescriptorType | None) for method in _METHODS):
            return None
    return None


def is_stop(error: BaseException) -> bool:
    """Whether an exception out of the user's code is due to the user's Stop, which must not be swallowed."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def explain(error: BaseException) -> str:
    """Why something was not pickled, with the method of the user's that raised, if one did."""
    method, tb = None, error.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        method = method or (code.co_qualname if _is_method(code, tb) else None)
        tb = tb.tb_next
    return f"{method} raised {describe_error(error)}" if method else describe_error(error)


def _is_method(code: CodeType, tb: TracebackType) -> bool:
    module = str(tb.tb_frame.f_globals.get("__name__", ""))
    return code.co_name in _METHODS and not module.startswith(("cloudpickle", "jdist"))


def find_culprit(
    obj: object, reason: BaseException, failure: Callable[[object], BaseException | None]
) -> tuple[str, object, BaseException]:
    """The innermost part that cannot be pickled, as far as a limited search finds it: its path, itself, and why."""
    path = ""
    for _ in range(_DEPTH):
        if _kind(type(obj)) is not None:
            break
        for step, part in parts_of(obj)[:_TRIES]:
            found = failure(part)
            if found is not None:
                path, obj, reason = path + step, part, found
                break
        else:
            break
    return path, obj, reason


def parts_of(obj: object) -> list[tuple[str, Any]]:
    """The parts of ``obj``, each with the step of the path that leads to it."""
    if type(obj) is dict:
        return [(f"[{key!r}]", value) for key, value in obj.items() if type(key) in (str, int, tuple, float, bool)]
    if type(obj) in (list, tuple):
        return [(f"[{i}]", value) for i, value in enumerate(obj)]  # type: ignore[arg-type, var-annotated]
    if hasattr(type(obj), "__closure__") and hasattr(type(obj), "__code__"):
        function: Any = obj
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        return [(f" closes over {name}", cell.cell_contents) for name, cell in cells]
    try:
        return [(f".{name}", value) for name, value in vars(obj).items()]
    except BaseException:  # it has none, or the user's own __getattr__ says so
        return []
