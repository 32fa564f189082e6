"""What the server of the tests is started with: an authorizer that a file commands, and a log of what is unpickled."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from jupyter_server.auth.authorizer import Authorizer

BED = Path(os.environ["JDIST_TEST_BED"])


class Guard(Authorizer):
    """Denies the actions that the file ``denied`` names, for jdist; notes what it was asked."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        if resource != "jdist":
            return True
        with (BED / "asked").open("a") as log:
            log.write(f"{handler.request.method} {action}\n")
        denied = BED / "denied"
        return not (denied.exists() and action in denied.read_text().split())


def note_unpickling(event: str, args: Any) -> None:
    """An audit hook."""
    if event == "pickle.find_class":
        with (BED / "unpickled").open("a") as log:
            log.write(f"{args}\n{''.join(traceback.format_stack())}\n")


sys.addaudithook(note_unpickling)
