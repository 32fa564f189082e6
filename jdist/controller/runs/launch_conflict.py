"""Launch conflicts: ranks of a cell launch the processes of a world, though they are such processes themselves.

That is recognised by what goes wrong, as ranks write or raise it, whichever launcher it was. Pure.
"""

from jdist.core.messages.status import Notice
from jdist.core.outcome import FORKED
from jdist.core.remedy import Remedy

_SEVERAL = (  # Signs where several ranks run the cell; a single one may launch what it likes.
    "The server socket has failed to listen on",  # torch: another process has the address of the rendezvous store
    "To launch a multi-device training from your notebook, the `Accelerator`",  # accelerate
    "You have to specify the number of devices you would like to use",  # accelerate
)
_TEXT = (
    "the processes that a rank has launched cannot form a world: the ranks are the processes already. Call the "
    'function itself in the cell, without notebook_launcher or mp.spawn; with Lightning, use strategy="ddp"'
)
_RUN = Remedy("run", "run a script on the ranks", name="SCRIPT.py")


def find(text: str, run: int, ranks: tuple[int, ...]) -> Notice | None:
    """What the user should know if ``text``, which a rank of the run has written or raised, is such a sign."""
    signs = (FORKED, *_SEVERAL) if len(ranks) > 1 else (FORKED,)
    return Notice(_TEXT, run, (_RUN,)) if any(sign in text for sign in signs) else None
