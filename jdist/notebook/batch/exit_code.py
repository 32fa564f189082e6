"""Exit code: what the command returns to the shell, as the script itself would."""

import re

from jdist.client.run import CellRun
from jdist.core.messages.debug import RankPaused
from jdist.core.outcome import Outcome

FAILED = 1
SIGNALLED = 128  # Shells add the number of the signal to this.

# The wording of agent/processes/exits for the end of a process, and of worker/cells/script for sys.exit.
_EXITED = re.compile(r"exited with (?:code )?(\d+)")
_KILLED = re.compile(r"killed by signal (\d+)")


def held_failure(run: CellRun, failure: RankPaused | None) -> RankPaused | None:
    """The failure that was held, if it decides how the run has ended.

    The loss of a rank ends the run whatever is held; the failure of another rank may be its consequence, such as a
    connection that was closed. Ranks that were lost with their cluster, which a user has stopped, have no error.
    """
    is_lost = any(outcome.kind == "lost" and outcome.error is not None for outcome in run.outcomes.values())
    return None if is_lost else failure


def exit_code(run: CellRun, held: RankPaused | None = None) -> int:
    """0 if every rank has finished; else the code of the rank that failed first.

    ``held`` is a failure that was held: if the run was interrupted later, the outcome no longer shows it.
    """
    if held is not None:
        return (_read(held.error) if held.error.startswith("ScriptExit") else 0) or FAILED
    failed = {rank: outcome for rank, outcome in sorted(run.outcomes.items()) if not outcome.ok}
    if not failed:
        return 0 if len(run.outcomes) == len(run.ranks) else FAILED
    causes = [r for r, o in failed.items() if o.kind in ("error", "lost") and not (o.error and o.error.is_echo)]
    first = run.first_failure if run.first_failure in failed else next(iter(causes or failed))
    return _code_of(failed[first]) or FAILED


def _code_of(outcome: Outcome) -> int:
    error = outcome.error
    if error is None:
        return FAILED
    if error.exit_code is not None:
        return error.exit_code
    return _read(error.evalue) if outcome.kind == "lost" else FAILED


def _read(text: str) -> int:
    if m := _KILLED.search(text):
        return SIGNALLED + int(m[1])
    return int(m[1]) & 0xFF if (m := _EXITED.search(text)) else 0
