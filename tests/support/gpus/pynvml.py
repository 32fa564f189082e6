"""A stand-in for NVML's module, which reports what a test has written to ``state.json`` beside it.

A GPU is a dictionary: ``uuid``, ``name``, ``total``, ``used``, ``busy`` (percent), ``mig`` (0 or 1), ``processes``
(lists of pid and bytes), ``slices`` (lists of processes). What is missing the driver does not support;
``lost``: the GPU has fallen off the bus.
"""

# ruff: noqa: N801, N802, N816 — the names are NVML's own

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_DEVICE_MIG_ENABLE = 1
nvmlMemory_v2 = 0x02000028

_FOLDER = Path(__file__).parent


class NVMLError(Exception):
    """As NVML raises them."""


class NVMLError_LibraryNotFound(NVMLError):
    """No driver."""


def _state() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_FOLDER / "state.json").read_text())
    return found


def _known(value: Any) -> Any:
    if value is None:
        raise NVMLError("Not Supported")
    return value


def nvmlInit() -> None:
    with (_FOLDER / "asked").open("a") as f:
        f.write("init\n")
    state = _state()
    if state.get("hangs"):
        with (_FOLDER / "hanging").open("a") as f:
            f.write(f"{os.getpid()}\n")
        time.sleep(1000)
    if state.get("is_missing"):
        raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")
    if state.get("error"):
        raise NVMLError(state["error"])


def nvmlSystemGetDriverVersion() -> str:
    return str(_state().get("driver", "570.86.15"))


def nvmlDeviceGetCount() -> int:
    return len(_state()["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, Any]:
    gpu: dict[str, Any] = _state()["gpus"][index]
    if gpu.get("lost"):
        raise NVMLError("GPU is lost")
    return gpu


def nvmlDeviceGetUUID(gpu: dict[str, Any]) -> str:
    return str(_known(gpu.get("uuid")))


def nvmlDeviceGetName(gpu: dict[str, Any]) -> str:
    return str(_known(gpu.get("name")))


def nvmlDeviceGetMemoryInfo(gpu: dict[str, Any], version: int | None = None) -> SimpleNamespace:
    if version is not None and _state().get("is_old"):
        raise NVMLError("Function Not Found")
    reserved = 0 if version is not None else gpu.get("reserved", 0)
    return SimpleNamespace(total=_known(gpu.get("total")), used=_known(gpu.get("used")) + reserved)


def nvmlDeviceGetUtilizationRates(gpu: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(gpu=_known(gpu.get("busy")))


def nvmlDeviceGetMigMode(gpu: dict[str, Any]) -> list[int]:
    return [_known(gpu.get("mig")), 0]


def nvmlDeviceGetMaxMigDeviceCount(gpu: dict[str, Any]) -> int:
    return 7 if gpu.get("mig") else 0


def nvmlDeviceGetMigDeviceHandleByIndex(gpu: dict[str, Any], index: int) -> dict[str, Any]:
    slices = gpu.get("slices", [])
    if index >= len(slices):
        raise NVMLError("Not Found")
    return {"processes": slices[index]}


def nvmlDeviceGetComputeRunningProcesses_v3(gpu: dict[str, Any]) -> list[SimpleNamespace]:
    processes = _known(gpu.get("processes", []))
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]
