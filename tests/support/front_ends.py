"""What any notebook front end can show: rules for mime bundles, after what VS Code, Colab and JupyterLab publish.

They drop scripts and event handlers, load nothing from elsewhere, ignore mime types that they do not know, and put the
output on a light or a dark ground.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

WIDGET = "application/vnd.jupyter.widget-view+json"
_KNOWN = re.compile(r"text/(plain|html|markdown|latex)|image/(png|jpeg|svg\+xml)|application/json")
_FORBIDDEN = {"script", "iframe", "object", "embed", "link", "base", "form", "meta", "foreignobject"}
_LOADING = {"src", "srcset", "data", "poster", "background", "action", "formaction", "xlink:href"}
_GROUNDS = ((255, 255, 255), (30, 30, 30))  # Of light themes, and of VS Code's and Colab's dark ones.
_LEAST_CONTRAST = 3.0
_NAMED = {"black": (0, 0, 0), "white": (255, 255, 255)}


def breaches(bundle: Mapping[str, Any]) -> list[str]:
    """The rules that the bundle breaks; none if every front end can show it."""
    own = [mime for mime in bundle if not _KNOWN.fullmatch(mime)]
    found = [] if "text/plain" in bundle else ["no text/plain"]
    found += [f"{mime} without text/html" for mime in own if "text/html" not in bundle]
    return found + list(_of_markup(bundle.get("text/html", ""))) + list(_of_markup(bundle.get("image/svg+xml", "")))


def _of_markup(markup: str) -> Iterator[str]:
    parser = _Tags()
    parser.feed(markup)
    parser.close()
    yield from (f"<{tag}> is not closed" for tag in parser.open)
    for tag, attributes in parser.tags:
        if tag in _FORBIDDEN:
            yield f"<{tag}>"
        for name, value in attributes.items():
            if name.startswith("on"):
                yield f"{tag} {name}="
            if (name in _LOADING or (name == "href" and tag != "a")) and not re.match(r"data:image/|#", value):
                yield f'{tag} {name}="{value[:60]}"'
            if name == "href" and not re.match(r"https?://|#", value):
                yield f'{tag} href="{value[:60]}"'
        yield from (f"{tag} style: {breach}" for breach in _of_style(attributes.get("style", "")))
        if tag == "text" and (fill := attributes.get("fill", "")) and not _is_readable(fill) and fill != "#fff":
            yield f"text fill={fill}"  # white stands on coloured bars
    for text in parser.styles:
        yield from (f"<style>: {rule}" for rule in re.findall(r"@import[^;]*|url\((?!['\"]?(?:data:|#))[^)]*", text))
        for rules in re.findall(r"\{([^{}]*)\}", text):
            yield from (f"<style>: {breach}" for breach in _of_style(rules))


def _of_style(style: str) -> Iterator[str]:
    if re.search(r"url\((?!['\"]?(?:data:|#))", style):
        yield f"loads: {style}"
    rules = dict(part.split(":", 1) for part in re.split(r";(?![^(]*\))", style) if ":" in part)
    rules = {name.strip(): value.strip() for name, value in rules.items()}
    color, ground = rules.get("color", ""), rules.get("background-color", rules.get("background", ""))
    if color and not ground and not _is_readable(color):
        yield f"color:{color} is not readable on every ground"
    if ground and not color and not _is_translucent(ground):
        yield f"background:{ground} without a colour for the text"


def _fallback(value: str) -> str:
    """What holds where JupyterLab's variables are not defined."""
    while found := re.fullmatch(r"var\(--[\w-]+(?:,(.*))?\)", value):
        value = (found[1] or "inherit").strip()
    return value


def _is_readable(value: str) -> bool:
    value = _fallback(value)
    if value.lower() in ("inherit", "currentcolor", "unset", "initial"):
        return value != "initial"
    rgb = _rgb(value)
    return rgb is not None and all(_contrast(rgb, ground) >= _LEAST_CONTRAST for ground in _GROUNDS)


def _is_translucent(value: str) -> bool:
    value = _fallback(value)
    if value in ("none", "transparent", "inherit", "unset"):
        return True
    alpha = re.fullmatch(r"rgba\([^)]*,\s*([\d.]+)\)", value)
    opaque = 0.5
    if alpha:
        return float(alpha[1]) <= opaque
    digits = value.removeprefix("#")
    return value.startswith("#") and len(digits) == 8 and int(digits[6:], 16) <= opaque * 255


def _rgb(value: str) -> tuple[int, ...] | None:
    if value in _NAMED:
        return _NAMED[value]
    digits = value.removeprefix("#")
    if not re.fullmatch(r"[0-9a-fA-F]{3}|[0-9a-fA-F]{6}", digits):
        return None
    digits = "".join(d * 2 for d in digits) if len(digits) == 3 else digits
    return tuple(int(digits[a:b], 16) for a, b in pairwise((0, 2, 4, 6)))


def _contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The contrast ratio of WCAG."""
    darker, lighter = sorted(map(_luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(rgb: tuple[int, ...]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (n / 255 for n in rgb)]
    return float(sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))


class _Tags(HTMLParser):
    """The tags of a piece of markup with their attributes, those that are not closed, and its style sheets."""

    _VOID = ("br", "hr", "img", "input", "wbr", "col")

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.styles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name.lower(): value or "" for name, value in attrs}))
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name.lower(): value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            del self.open[len(self.open) - 1 - self.open[::-1].index(tag)]

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.styles.append(data)
