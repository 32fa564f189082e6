"""The formatters of displayed values: a value that cannot be formatted says so in a line, where IPython would publish a
traceback that no front end shows. A text of many megabytes is cut before it travels.
"""

import sys
from typing import Any

from jdist.wire.values.text import shortened
from jdist.worker.compat.ipykernel import check_format, is_format, unguarded_format
from jdist.worker.kernel.guarded import described

_LONGEST = 1_000_000  # Characters of a value's text that travel.


def adapt(shell: Any) -> None:
    """Replace the formatters of an ipykernel's shell; before user code runs."""
    own = shell.display_formatter
    own.formatters = {kind: _telling(each) for kind, each in own.formatters.items()}
    own.ipython_display_formatter = _telling(own.ipython_display_formatter)
    own.mimebundle_formatter = _telling(own.mimebundle_formatter)


def _telling(formatter: Any) -> Any:
    kind: Any = type(formatter)
    format_value = unguarded_format(kind)
    is_text = formatter.format_type == "text/plain" and formatter.print_method == "_repr_pretty_"

    class Formatter(kind):  # type: ignore[misc]
        def __call__(self, obj: Any, *args: Any, **options: Any) -> Any:
            try:
                made = format_value(self, obj, *args, **options)
            except NotImplementedError:  # a class's way to say that it has no such form
                made = None
            except Exception as e:
                made = _failed(self, obj, f"raised {described(e)}")
            if not is_format(self, made):
                made = _failed(self, obj, f"returned {type(made).__name__}")
            return check_format(self, _shortened(made) if is_text else made, obj)

    def _failed(self: Any, obj: Any, what: str) -> str | None:
        if is_text:
            return f"<{type(obj).__name__}: repr() {what}>"
        print(f"jdist: {type(obj).__name__}.{self.print_method}() {what}", file=sys.stderr)
        return None

    return Formatter(parent=formatter.parent, enabled=formatter.enabled)


def _shortened(text: Any) -> Any:
    return shortened(text, _LONGEST) if isinstance(text, str) else text
