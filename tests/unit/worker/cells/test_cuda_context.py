"""Errors after which a process cannot use its GPU any more are told from the others by their texts."""

from __future__ import annotations

import pytest
import torch

from jdist.core.errors import Remedy
from jdist.worker.cells.outcome import FINAL, CudaContext, final_fault

ASSERT = """CUDA error: device-side assert triggered
Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Device-side assertion tracking was not enabled by user."""
CUBLAS = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"


@pytest.mark.parametrize("fault", FINAL)
def test_final_faults(fault: str) -> None:
    assert final_fault(f"CUDA error: {fault}\nCUDA kernel errors might be reported at some other API call") == fault
    assert final_fault(f"Triton Error [CUDA]: {fault}") == fault
    assert not final_fault(f"the user's own: {fault}")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79 GiB"),
        torch.AcceleratorError("CUDA error: invalid device ordinal\nGPU device may be out of range"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
        RuntimeError("Cannot re-initialize CUDA in forked subprocess"),
        RuntimeError("nothing of the kind"),
        ValueError("CUDA error: device-side assert triggered"),
    ],
)
def test_the_context_outlives_other_errors(error: BaseException) -> None:
    context = CudaContext()
    assert context.explain(error, 1, 0) is None
    assert not context.fault


def test_the_rank_is_named_and_its_restart_is_offered() -> None:
    found = CudaContext().explain(torch.AcceleratorError(ASSERT), 7, 3)
    assert found is not None
    assert found.text.startswith("the CUDA context of rank 3 is lost: ")
    (remedy,) = found.remedies
    assert (remedy.action, remedy.ranks) == ("restart", "3")
    assert isinstance(remedy, Remedy)


def test_later_cells_of_the_gpu_say_so_too_and_others_do_not() -> None:
    context = CudaContext()
    context.explain(RuntimeError(ASSERT), 7, 1)
    assert context.explain(NameError("x"), 8, 1) is None
    assert context.explain(RuntimeError("size mismatch"), 8, 1) is None
    later = context.explain(RuntimeError(CUBLAS), 9, 1)
    assert later is not None
    assert "was lost in run 7 (device-side assert triggered)" in later.text
    assert later.remedies


def test_an_error_that_was_raised_from_it() -> None:
    try:
        try:
            raise torch.AcceleratorError(ASSERT)
        except RuntimeError as e:
            raise ValueError("the step failed") from e
    except ValueError as e:
        found = CudaContext().explain(e, 1, 0)
    assert found is not None


def test_an_error_number_is_enough() -> None:
    error = torch.AcceleratorError("Triton: kernel failed")
    error.error_code = 700
    assert CudaContext().explain(error, 1, 0) is not None


def test_a_text_that_raises_is_no_fault() -> None:
    class Odd(RuntimeError):
        def __str__(self) -> str:
            raise ValueError

    assert CudaContext().explain(Odd(), 1, 0) is None
