"""Jupyter messages as an agent reads them from its workers' kernels: only the fields that jdist needs."""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from jdist.core.errors import ProtocolError
from jdist.core.messages.base import MESSAGE_ID

_DELIMITER = b"<IDS|MSG>"


class KernelMessage(Struct, frozen=True):
    """A message from a kernel's iopub or stdin socket."""

    kind: str
    run: int  # 0 when no run of jdist is its parent.
    content: msgspec.Raw
    buffers: tuple[bytes, ...]


class StreamContent(Struct):
    """Text written to a stream."""

    name: Literal["stdout", "stderr"]
    text: str


class DisplayContent(Struct):
    """A display or a result."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    transient: dict[str, Any] = {}


class ClearContent(Struct):
    """A request to clear the output."""

    wait: bool = False


class CommContent(Struct):
    """A message to or from a widget (a comm)."""

    comm_id: str = ""
    data: dict[str, Any] = {}

    @property
    def sets_outputs(self) -> bool:
        """Whether it puts something into an output widget that was not captured."""
        state = self.data.get("state")
        return isinstance(state, dict) and bool(state.get("outputs"))


class InputContent(Struct):
    """A request for a line of input."""

    prompt: str = ""
    password: bool = False


class _Header(Struct):
    msg_type: str = ""
    msg_id: str = ""


_header = msgspec.json.Decoder(_Header)
_C = TypeVar("_C", bound=Struct)


def parse(frames: list[bytes]) -> KernelMessage:
    """Raises ProtocolError for frames that are no Jupyter message."""
    try:
        at = frames.index(_DELIMITER)
        header = _header.decode(frames[at + 2])
        parent = _header.decode(frames[at + 3])
        content = msgspec.Raw(frames[at + 5])
    except (ValueError, IndexError, msgspec.MsgspecError, RecursionError) as e:
        raise ProtocolError(f"not a message of a kernel's: {e}") from None
    run = parent.msg_id.removeprefix(MESSAGE_ID)
    number = int(run) if run != parent.msg_id and run.isdecimal() else 0
    return KernelMessage(header.msg_type, number, content, tuple(frames[at + 6 :]))


def read_content(message: KernelMessage, kind: type[_C]) -> _C:
    """A message's content. Text that is not UTF-8 (a file name, say) is sent as it is. Raises ProtocolError."""
    try:
        return msgspec.json.decode(message.content, type=kind)
    except (UnicodeDecodeError, msgspec.DecodeError):
        try:
            return msgspec.json.decode(bytes(message.content).decode(errors="replace"), type=kind)
        except (msgspec.DecodeError, RecursionError) as e:
            raise ProtocolError(f"a kernel's message cannot be read: {e}") from None
