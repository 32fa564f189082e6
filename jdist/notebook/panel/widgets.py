"""The few kinds of widgets that the panel is made of. Each has a name that assistive technology reads."""

from typing import Any

import ipywidgets
from ipywidgets import Layout


def markup(html: str = "") -> Any:
    """Something drawn as HTML."""
    return ipywidgets.HTML(html, layout=Layout(margin="0", overflow="auto"))


def row(*parts: Any) -> Any:
    """Widgets side by side, and below each other where there is no room."""
    return ipywidgets.HBox(parts, layout=Layout(flex_flow="row wrap", align_items="center", grid_gap="4px"))


def column(*parts: Any) -> Any:
    """Widgets one below the other."""
    return ipywidgets.VBox(parts)


def field(kind: type, label: str, tooltip: str, width: str = "300px", **options: Any) -> Any:
    """A field for a value: ``kind`` of ipywidgets, with its ``options``."""
    style = {"description_width": "100px"}
    return kind(description=label, tooltip=tooltip, style=style, layout=Layout(width=width), **options)


def set_visible(widget: Any, is_visible: bool) -> None:
    """Show or hide ``widget``."""
    display = None if is_visible else "none"
    if widget.layout.display != display:
        widget.layout.display = display
