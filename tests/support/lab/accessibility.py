"""Accessibility: what axe finds in a part of a page that keeps somebody from using it, in each theme of JupyterLab."""

from __future__ import annotations

from collections.abc import Sequence

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

LIGHT, DARK, HIGH_CONTRAST = "JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"
SERIOUS = ("serious", "critical")
ANY = ("minor", "moderate", *SERIOUS)
MENU = ".lm-Menu"
IN_MENUS = ("aria-required-children", "listitem")
"""Rules that no menu of JupyterLab meets: separators and submenus have roles that a menu may not hold."""
IN_FORMS = ("label", "label-title-only")
"""Rules that no page of JupyterLab's settings editor meets: its fields are described by their labels, not named."""
CHANGE_THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
HAS_THEME = "theme => document.body.dataset.jpThemeName === theme && !document.querySelector('#jupyterlab-splash')"
# A colour that is on its way to another one has the contrast of neither.
IS_STILL = "() => !document.getAnimations().some(each => each instanceof CSSTransition)"


def use_theme(page: Page, theme: str) -> None:
    """Change to it, and wait until it is shown."""
    page.evaluate(CHANGE_THEME, theme)
    page.wait_for_function(HAS_THEME, arg=theme)


def findings(page: Page, within: str, impacts: Sequence[str] = SERIOUS, apart_from: Sequence[str] = ()) -> list[str]:
    """In the theme that the page has. ``within`` is a selector; that nothing matches it is an error.

    ``apart_from`` are the rules that JupyterLab's own nodes break there.
    """
    page.wait_for_function(IS_STILL)
    found = Axe().run(page, context=within).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {node['html'][:200]}\n{node['failureSummary']}"
        for each in found
        if each["impact"] in impacts and each["id"] not in apart_from
        for node in each["nodes"]
    ]


def findings_in_menu(page: Page) -> list[str]:
    """The same for the menus that are open."""
    return findings(page, MENU, apart_from=IN_MENUS)


def findings_in_all_themes(
    page: Page, within: str, impacts: Sequence[str] = SERIOUS, apart_from: Sequence[str] = ()
) -> list[str]:
    """In the dark, the high contrast and the light theme, of which the last one stays."""
    found = []
    for theme in (DARK, HIGH_CONTRAST, LIGHT):
        use_theme(page, theme)
        found += [f"{theme}: {finding}" for finding in findings(page, within, impacts, apart_from)]
    return found
