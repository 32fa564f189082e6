"""What torch reports about itself on this node, in a process of its own that ends with the answer."""

import signal
import socket

import msgspec

from jdist.core.messages.nodes import TorchFacts
from jdist.core.settings import TorchFactsSpec
from jdist.wire.processes import set_name


def main(spec_json: bytes) -> None:
    """Report to the Unix socket that is named in the spec, as one datagram."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_name("jdist-facts")
    report_to = msgspec.json.decode(spec_json, type=TorchFactsSpec).report_to
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reporter:
        reporter.connect(report_to)
        reporter.send(msgspec.json.encode(torch_facts()))


def torch_facts() -> TorchFacts:
    """Ask CUDA's driver; never to be called in a process from which others are forked."""
    import torch
    import torch.cuda.nccl
    import torch.distributed

    from jdist.worker.compat.private import lacks

    trouble, gpus, nccl = "", 0, ""
    if torch.version.cuda is not None:
        try:
            torch.cuda.init()
            gpus = torch.cuda.device_count()
        except (RuntimeError, AssertionError) as e:  # no driver, one that is too old, none of the devices permitted
            trouble = str(e).strip().splitlines()[0]
        if torch.distributed.is_nccl_available():
            nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return TorchFacts(str(torch.__version__), torch.version.cuda or "", nccl, gpus, trouble, lacks())
