"""What ssh runs to ask the user for something. It passes the question to the process that runs ssh.

ssh runs this file by its path, with the question as its argument, so it uses the standard library only.
"""

import json
import os
import socket
import sys

VARIABLE = "JDIST_ASKPASS"  # The port on this host that takes the question, and a word that proves where it is from.


def main() -> int:
    """Print the answer; the exit code says whether there is one."""
    port, _, token = os.environ[VARIABLE].partition(" ")
    about = os.environ.get("SSH_ASKPASS_PROMPT", "")
    with socket.create_connection(("127.0.0.1", int(port))) as sock, sock.makefile("rw") as stream:
        stream.write(json.dumps({"token": token, "text": sys.argv[1], "about": about}) + "\n")
        stream.flush()
        answer = json.loads(stream.readline() or "null")
    if answer is None:
        return 1
    print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
