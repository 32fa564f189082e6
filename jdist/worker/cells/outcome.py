"""Turn IPython's result of a cell into a RankDone message, and tell whether CUDA is lost with it.

Whether a rank's CUDA context is lost is known from the errors of cells. Some faults on a GPU are final for a process:
CUDA then answers each further call with the same error, and only another process can use the GPU again. (CUDA calls
them "sticky"; its documentation of ``cudaError`` says of each that "the process must be terminated and relaunched".)
The process itself goes on, with everything that it has on the CPU.
"""

import difflib
import os
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from jdist.core.errors import JdistError, Remedy
from jdist.core.messages.base import PayloadWire
from jdist.core.messages.runs import RankDone
from jdist.core.outcome import ErrorInfo
from jdist.core.settings import INLINE_LIMIT
from jdist.wire.values.frames import shortened
from jdist.wire.values.objects import encode, inline, summarize
from jdist.worker import process
from jdist.worker.cells.user_code import guarded, path_of_shown, text_of
from jdist.worker.compat.ipykernel import cell_numbers, last_traceback
from jdist.worker.compat.torch import LOST_CONNECTION

# The errors, as cudaGetErrorString names them, and their numbers in cudaError_t.
FINAL = {
    "uncorrectable ECC error encountered": 214,
    "uncorrectable NVLink error detected during the execution": 220,
    "an illegal memory access was encountered": 700,
    "the launch timed out and was terminated": 702,
    "device-side assert triggered": 710,
    "hardware stack error": 714,
    "an illegal instruction was encountered": 715,
    "misaligned address": 716,
    "operation not supported on global/shared address space": 717,
    "invalid program counter": 718,
    "unspecified launch failure": 719,
}
_RAISED_BY = ("cuda error", "error [cuda]", "cuda driver error", "cuda failure")  # torch, Triton, torch, NCCL
_OF_THE_GPU = ("cuda", "cublas", "cudnn", "cufft", "cusolver", "cusparse", "nccl", "triton")
_CHAIN = 10  # Exceptions of a chain that are looked at.


class LostContext(Struct, frozen=True):
    """What is said of an error that a lost context explains."""

    text: str
    remedies: tuple[Remedy, ...]


class CudaContext:
    """The context of this process. It is told of each error with which a cell ended."""

    def __init__(self) -> None:
        self.fault = ""  # What ended it: a key of `FINAL`; "": nothing that is known.
        self._run = 0

    def explain(self, error: BaseException, run: int, rank: int | None) -> LostContext | None:
        """What to say of the error of a run's cell; None where the context is not lost, or has no part in it."""
        texts = [text for each in _chain(error) if (text := _text(each))]
        found = fault_of(error)
        if found and not self.fault:
            self.fault, self._run = found, run
        if not self.fault or not (found or any(word in text for text in texts for word in _OF_THE_GPU)):
            return None
        who = "this process" if rank is None else f"rank {rank}"
        when = "is lost" if run == self._run else f"was lost in run {self._run} ({self.fault})"
        text = f"the CUDA context of {who} {when}: nothing on its GPU can be used or read before {who} is restarted"
        keeps = "start a fresh process; pull first what you need of its values on the CPU"
        return LostContext(text, () if rank is None else (Remedy("restart", keeps, str(rank)),))


def fault_of(error: BaseException) -> str:
    """The fault that an error reports, or one that it was raised from; "" if there is none after which all is lost."""
    texts = (final_fault(_text(each)) or _by_number(each) for each in _chain(error))
    return next(filter(None, texts), "")


def final_fault(text: str) -> str:
    """The fault that ends a context which an error's text reports, "" if it reports none."""
    text = text.lower()
    if not any(words in text for words in _RAISED_BY):
        return ""
    return next((fault for fault in FINAL if fault.lower() in text), "")


def _by_number(error: BaseException) -> str:
    """The same by the number that a ``torch.AcceleratorError`` carries."""
    if type(error).__name__ != "AcceleratorError":
        return ""
    number = getattr(error, "error_code", None)
    return next((fault for fault, known in FINAL.items() if known == number), "")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those which it was raised from or while handling."""
    for _ in range(_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _text(error: BaseException) -> str:
    """An error's text in lower case, if it may be one of the GPU's."""
    if not isinstance(error, RuntimeError):
        return ""
    text, _ = guarded(lambda: str(error))
    return (text or "").lower()


_USAGE = 2  # The exit code of argparse and others for a wrong command line; a cell has none.
_SCRIPT = (Remedy("run", "run a script with command-line arguments; a cell has none", name="FILE --option value"),)
_LONGEST = 100_000  # Characters of an error's text, and of a part of its traceback.
_LONGEST_TRACEBACK = 400_000
_LONGEST_NAME = 1000
_ECHOING = ("RuntimeError", "DistBackendError", "DistNetworkError")  # Errors that report a peer's broken connection.
_ECHOES = (
    *LOST_CONNECTION,
    "connection refused",
    "remote process exited or there was a network error",
    "nccl communicator was aborted",
)


def outcome_of(result: Any, shell: Any, run: int, worker: int, duration: float, context: CudaContext) -> RankDone:
    """``result`` is IPython's ExecutionResult, or None when the cell was cancelled before it had one."""
    if result is None:
        cancelled = ErrorInfo("KeyboardInterrupt", "the cell was stopped while it awaited something")
        return RankDone(run, worker, "error", duration, error=cancelled)
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        info = _error_info(error, shell)
        lost, _ = guarded(lambda: context.explain(error, run, process.rank()))
        if lost is not None:
            remedies = (*lost.remedies, *info.remedies)
            info = structs.replace(info, evalue=f"{info.evalue.rstrip()}\n{lost.text}", remedies=remedies)
        return RankDone(run, worker, "error", duration, error=info)
    value = result.result
    if value is None:
        return RankDone(run, worker, "value", duration)
    encoded, _ = guarded(lambda: encode(value, limit=INLINE_LIMIT))
    if encoded is None:  # too large, or the user's own __reduce__ fails: the value stays here, and pull() says why
        held = f"Out[{shell.execution_count - 1}]"
        return RankDone(run, worker, "value", duration, payload=_without_content(value), held=held)
    return RankDone(run, worker, "value", duration, payload=inline(*encoded))


def _without_content(value: Any) -> PayloadWire:
    nbytes, _ = guarded(lambda: int(value.nbytes))  # most have none, and the user's own may be or do anything
    summary, failure = guarded(lambda: summarize(value))
    if summary is None:  # the user's own __len__ or attributes
        summary = f"{type(value).__name__} (that cannot be described: {type(failure).__name__})"
    return PayloadWire(b"", (), nbytes or 0, shortened(summary, _LONGEST))


def _error_info(error: BaseException, shell: Any) -> ErrorInfo:
    """The exception with IPython's own rendering of its traceback, and the cell line it came through."""
    line, source = _cell_line(error, shell)
    ename = shortened(type(error).__name__, _LONGEST_NAME, _LONGEST_NAME // 2)
    remedies = error.remedies if isinstance(error, JdistError) else ()
    if isinstance(error, SystemExit) and error.code == _USAGE:
        remedies = _SCRIPT
    text, failure = (error.message, "") if isinstance(error, JdistError) else text_of(error)
    evalue = f"(an exception whose text raises {failure})" if text is None else text
    if isinstance(error, NameError):
        evalue += _near_miss(error, shell.user_ns)
    frames = _frames(shell)
    return ErrorInfo(
        ename=ename,
        evalue=shortened(evalue, _LONGEST),
        traceback=frames,
        installed=tuple(map(path_of_shown, frames)),
        cell_line=line,
        source=None if source is None else shortened(source, _LONGEST_NAME, _LONGEST_NAME // 2),
        is_echo=ename in _ECHOING and any(text in evalue.lower() for text in _ECHOES),
        remedies=remedies,
        exit_code=error.code if isinstance(error, process.ScriptExit) else None,
    )


def _frames(shell: Any) -> tuple[str, ...]:
    """IPython's rendering of the traceback, entry by entry; of very much text, the end, with the innermost frames."""
    rendered = [shortened(frame, _LONGEST) for frame in last_traceback(shell)]
    first, room = len(rendered), _LONGEST_TRACEBACK
    while first and room >= len(rendered[first - 1]):
        first -= 1
        room -= len(rendered[first])
    left_out = [f"… {first} parts of the traceback left out …"] if first else []
    return (*left_out, *rendered[first:])


def _cell_line(error: BaseException, shell: Any) -> tuple[int | None, str | None]:
    """Line number and text of the innermost frame of a cell; for a script, no number and its file in the text."""
    cells = cell_numbers(shell)
    frames = traceback.extract_tb(error.__traceback__)
    inside = process.script_frames(frames)
    if inside:  # a script of the run verb
        at = [f for f in inside if f.filename == inside[0].filename][-1]
        return None, f"{os.path.basename(at.filename)} line {at.lineno}: {at.line}"
    mine = [f for f in frames if f.filename in cells]
    if isinstance(error, SyntaxError) and (inside is not None or error.filename in cells or not mine):
        text = (error.text or "").strip() or None
        if inside is None:  # the cell itself
            return error.lineno, text
        return None, f"{os.path.basename(error.filename or '')} line {error.lineno}: {text or ''}".rstrip(": ")
    if inside is not None:  # the script has exited, or could not be begun
        return None, None
    return (mine[-1].lineno, (mine[-1].line or "").strip() or None) if mine else (None, None)


def _near_miss(error: NameError, namespace: Mapping[str, Any]) -> str:
    """``. Did you mean: 'model'?``, as Python says it: a name that could be meant where this was raised; else ""."""
    name, tb = getattr(error, "name", None), error.__traceback__
    if not isinstance(name, str) or tb is None:
        return ""
    while tb.tb_next is not None:
        tb = tb.tb_next
    every = {*tb.tb_frame.f_locals, *tb.tb_frame.f_globals, *namespace} - {name}
    known = (each for each in map(str, every) if name[:1] == "_" or each[:1] != "_")
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return f". Did you mean: {close[0]!r}?" if close else ""
