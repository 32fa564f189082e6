"""Attempts: what another Unix user of a host tries on somebody's cluster, as program texts that print what they got.

Each prints ``[user's number, [what was got]]``. The second list is empty if the cluster is safe.
"""

from __future__ import annotations

OTHER = 54321
"""A user's number that nobody has here."""
PRELUDE = """
import json, os, signal, socket, sys
import zmq
"""
TRY_FILES = """
got = []
for path in json.loads(sys.argv[1]):
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.close(os.open(path, flags))
            got.append(path)
        except (PermissionError, FileNotFoundError, IsADirectoryError):
            pass
for pid in json.loads(sys.argv[2]):
    for name in ("environ", "mem", "fd"):
        try:
            open(f"/proc/{pid}/{name}", "rb").read(1) if name != "fd" else os.listdir(f"/proc/{pid}/fd")
            got.append(f"{name} of {pid}")
        except OSError:
            pass
    try:
        os.kill(pid, signal.SIGTERM)
        got.append(f"signal to {pid}")
    except PermissionError:
        pass
print(json.dumps([os.getuid(), got]))
"""
TRY_PORTS = """
places, cluster = json.loads(sys.argv[1])
got = []
def ask(kind, address, data):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as sock:
        sock.settimeout(20)
        try:
            sock.connect("\\0" + address if isinstance(address, str) else tuple(address))
            sock.sendall(data)
            return sock.recv(4096)
        except (ConnectionError, BrokenPipeError):
            return b""
for address in places:
    for verb in ("PUT", "GET", "LIFE", "STOP"):
        said = ask(verb, address, f"JDIST1 {verb} {cluster}\\n".encode())
        if said:
            got.append([verb, address, said.hex()])
print(json.dumps([os.getuid(), got]))
"""
TRY_CONTROL = """
port, server_key, taken = json.loads(sys.argv[1])
context = zmq.Context()
got = []
def dial(name, curve):
    sock = context.socket(zmq.DEALER)
    sock.setsockopt(zmq.ROUTING_ID, name.encode())
    sock.setsockopt(zmq.LINGER, 0)
    if curve:
        public, secret = zmq.curve_keypair()
        sock.curve_serverkey, sock.curve_publickey, sock.curve_secretkey = server_key.encode(), public, secret
    ends = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
    events = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | ends)
    sock.connect(f"tcp://127.0.0.1:{port}")
    sock.send_multipart([b"\\0" * 25, b"let me in"])
    assert events.poll(20000), "nobody answers"
    event = int.from_bytes(events.recv_multipart()[0][:2], "little")
    if event == zmq.EVENT_HANDSHAKE_SUCCEEDED or sock.poll(0):
        got.append([name, curve])
    sock.disable_monitor()
    sock.close()
for name in ("c-" + "0" * 32, "e-1", taken):
    for curve in (True, False):
        dial(name, curve)
context.term()
print(json.dumps([os.getuid(), got]))
"""
