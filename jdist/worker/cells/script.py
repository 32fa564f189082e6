"""Running a whole torchrun script on this rank, as ``__main__``, in the live session."""

import runpy
import sys
from pathlib import Path
from typing import Any

_KEPT = ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__file__", "__cached__")


def run(path: str, args: list[str], namespace: dict[str, Any]) -> None:
    """Run the script with ``sys.argv`` set; its names are bound in the session then. ``sys.exit(0)`` is no error."""
    __tracebackhide__ = True
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not on this node; a script must be on every node")
    argv, search = sys.argv, sys.path[:]
    main = sys.modules["__main__"]
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).parent))
    try:
        found = runpy.run_path(path, run_name="__main__")
    except SystemExit as e:
        if e.code not in (None, 0):
            raise RuntimeError(f"{path} exited with {e.code}") from None
        return
    except BaseException as e:
        part = e.__traceback__  # Leave out the frames that run the script, unless it could not be compiled.
        while part is not None and part.tb_frame.f_code.co_filename != path:
            part = part.tb_next
        raise e.with_traceback(part or e.__traceback__)  # noqa: B904
    finally:
        sys.argv, sys.path[:] = argv, search
        sys.modules["__main__"] = main
    namespace.update({k: v for k, v in found.items() if k not in _KEPT})
