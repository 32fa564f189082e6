"""The rendezvous store's process: holds the TCPStore that no rank's death takes down, and does nothing else."""

import errno
import ipaddress
import signal
import socket
import threading
from datetime import timedelta

import msgspec

from jdist.core.settings import StoreReport, StoreSpec
from jdist.wire.processes import outlive_job_end, set_name

_BACKLOG = 2048


def main(spec_json: bytes) -> None:
    """Listen, send a `StoreReport` as one datagram, then stay until killed (with the agent)."""
    import torch.distributed as dist

    spec = msgspec.json.decode(spec_json, type=StoreSpec)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outlive_job_end()
    set_name("jdist-store")
    reporter = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    reporter.connect(spec.report_to)
    try:
        listener = _listen(spec.host, spec.port)
        store = dist.TCPStore(
            spec.host,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=30),
            master_listen_fd=listener.detach(),
        )
    except (RuntimeError, OSError) as e:
        reporter.send(msgspec.json.encode(StoreReport(error=str(e).splitlines()[0])))
        return
    reporter.send(msgspec.json.encode(StoreReport(store.port)))
    reporter.close()
    threading.Event().wait()


def _listen(host: str, port: int) -> socket.socket:
    """Listen at that one address; by default the store listens at all of this host's. Raises OSError.

    A name that stands here for the loopback, or for another host that forwards the port, is reached from elsewhere at
    addresses that cannot be known; for such a name, listen at all of them.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    is_near = ipaddress.ip_address(address[0]).is_loopback and host not in ("localhost", address[0])
    try:
        return socket.create_server(("", port) if is_near else address, family=family, backlog=_BACKLOG)
    except OSError as e:
        if e.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), family=family, backlog=_BACKLOG)
