"""A rank's CUDA context: whether it is lost, which is known from the errors of cells.

Some faults on a GPU are final for a process: CUDA then answers each further call with the same error, and only another
process can use the GPU again. (CUDA calls them "sticky"; its documentation of ``cudaError`` says of each that "the
process must be terminated and relaunched".) The process itself goes on, with everything that it has on the CPU.
"""

from collections.abc import Iterator

from msgspec import Struct

from jdist.core.remedy import Remedy
from jdist.worker.kernel.guarded import guarded

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
