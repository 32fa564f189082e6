"""Parts: the few kinds of widgets that the panel is made of. Every one has a name for those who do not see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

WRAP = {"flex_flow": "row wrap", "align_items": "center", "grid_gap": "4px"}


def markup() -> Any:
    """Something drawn."""
    return ipywidgets.HTML(layout=ipywidgets.Layout(margin="0", overflow="auto"))


def button(text: str, tooltip: str, on_click: Callable[[], None], icon: str = "", style: str = "") -> Any:
    """A button as wide as its words."""
    made = ipywidgets.Button(
        description=text,
        tooltip=tooltip,
        icon=icon,
        button_style=style,
        layout=ipywidgets.Layout(width="auto", max_width="100%", align_self="flex-start"),
    )
    made.on_click(lambda _: on_click())
    return made


def row(*parts: Any) -> Any:
    """Side by side, and below where there is no room."""
    return ipywidgets.HBox(parts, layout=ipywidgets.Layout(**WRAP))


def column(*parts: Any) -> Any:
    """One below the other."""
    return ipywidgets.VBox(parts)


def text(label: str, placeholder: str, tooltip: str, options: Sequence[str] | None = None) -> Any:
    """A field for a word; ``options`` are offered."""
    rest = {
        "description": label,
        "placeholder": placeholder,
        "tooltip": tooltip,
        "style": {"description_width": "100px" if label else "0"},
    }
    if options is None:
        return ipywidgets.Text(**rest, layout=ipywidgets.Layout(width="300px"))
    return ipywidgets.Combobox(
        **rest, options=tuple(options), ensure_option=False, layout=ipywidgets.Layout(width="300px")
    )


def choice(label: str, options: Sequence[Any], tooltip: str) -> Any:
    """One of several."""
    return ipywidgets.Dropdown(
        description=label,
        options=options,
        tooltip=tooltip,
        style={"description_width": "100px"},
        layout=ipywidgets.Layout(width="300px"),
    )


def number(label: str, tooltip: str) -> Any:
    """A whole number from 1."""
    return ipywidgets.BoundedIntText(
        value=1,
        min=1,
        max=100_000,
        description=label,
        tooltip=tooltip,
        style={"description_width": "100px"},
        layout=ipywidgets.Layout(width="200px"),
    )


def show(widget: Any, is_shown: bool) -> None:
    """Or hide."""
    display = None if is_shown else "none"
    if widget.layout.display != display:
        widget.layout.display = display
