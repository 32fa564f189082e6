"""The few kinds of widgets that the panel is made of. Each has a name that assistive technology reads."""

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
from ipywidgets import Layout

_LABEL = {"description_width": "100px"}
_FIELD = {"width": "300px"}


def markup(html: str = "") -> Any:
    """Something drawn as HTML."""
    return ipywidgets.HTML(html, layout=Layout(margin="0", overflow="auto"))


def button(text: str, tooltip: str, on_click: Callable[[], None], icon: str = "", style: str = "") -> Any:
    """A button as wide as its words."""
    layout = Layout(width="auto", max_width="100%", align_self="flex-start")
    made = ipywidgets.Button(description=text, tooltip=tooltip, icon=icon, button_style=style, layout=layout)
    made.on_click(lambda _: on_click())
    return made


def row(*parts: Any) -> Any:
    """Widgets side by side, and below each other where there is no room."""
    return ipywidgets.HBox(parts, layout=Layout(flex_flow="row wrap", align_items="center", grid_gap="4px"))


def column(*parts: Any) -> Any:
    """Widgets one below the other."""
    return ipywidgets.VBox(parts)


def text(label: str, placeholder: str, tooltip: str, options: Sequence[str] | None = None) -> Any:
    """A field for a word; ``options`` are offered."""
    style = _LABEL if label else {"description_width": "0"}
    rest = {
        "description": label,
        "placeholder": placeholder,
        "tooltip": tooltip,
        "style": style,
        "layout": Layout(**_FIELD),
    }
    if options is None:
        return ipywidgets.Text(**rest)
    return ipywidgets.Combobox(**rest, options=tuple(options), ensure_option=False)


def choice(label: str, options: Sequence[Any], tooltip: str) -> Any:
    """A choice of one of several."""
    return ipywidgets.Dropdown(
        description=label, options=options, tooltip=tooltip, style=_LABEL, layout=Layout(**_FIELD)
    )


def number(label: str, tooltip: str) -> Any:
    """A field for a whole number from 1."""
    layout = Layout(width="200px")
    limits = {"value": 1, "min": 1, "max": 100_000}
    return ipywidgets.BoundedIntText(**limits, description=label, tooltip=tooltip, style=_LABEL, layout=layout)


def set_visible(widget: Any, is_visible: bool) -> None:
    """Show or hide ``widget``."""
    display = None if is_visible else "none"
    if widget.layout.display != display:
        widget.layout.display = display
