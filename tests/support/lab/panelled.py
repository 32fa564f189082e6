"""The panel of ranks as a person has it: opened by its shortcut, and what stands in it found by its name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from playwright.sync_api import Locator, Page, expect

from support.lab.accessibility import findings, findings_in_all_themes
from support.lab.browsing import LONG, Lab

# A shortcut is known once the settings have been read, which is later than its command.
HAS_SHORTCUT = "() => window.jupyterapp?.commands?.keyBindings.some(each => each.command === 'jdist:open-panel')"
# What is opened before the layout has been restored may be closed by that.
IS_RESTORED = "() => window.jupyterapp.restored.then(() => true)"
# Where nothing was open, Lab opens its launcher a moment later, which takes the focus.
IS_SETTLED = """() => {
  const { content } = window.jupyterapp.shell.currentWidget ?? {};
  return !!content && (!content.hasClass('jp-Launcher') || content.node.contains(document.activeElement));
}"""
# A terminal is drawn on a canvas, so what stands there is not in the page's text.
SHOWS = """text => {
  const buffer = window.jupyterapp?.shell?.currentWidget?.content?._term?.buffer?.active;
  return Array.from({ length: buffer?.length ?? 0 }, (_, i) => buffer.getLine(i).translateToString(true))
    .join('\\n').includes(text);
}"""
DO = "([id, args]) => void window.jupyterapp.commands.execute(id, args)"
HANG = "if rank != 3:\n    dist.barrier()"
"""A cell that cannot finish: rank 3 has nothing to do in it, and the others wait for it."""


class Panelled:
    """A page that shows the panel."""

    def __init__(self, page: Page):
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self) -> None:
        """As by keyboard."""
        self.page.wait_for_function(HAS_SHORTCUT)
        self.page.evaluate(IS_RESTORED)
        self.page.wait_for_function(IS_SETTLED)
        if not self.panel.is_visible():
            self.page.locator("body").press("Control+Alt+r")
        expect(self.panel).to_be_visible()

    @property
    def panel(self) -> Locator:
        return self.page.locator("#jdist-panel")

    @property
    def status(self) -> Locator:
        """The item of the status bar."""
        return self.page.locator(".jdist-status button")

    def cluster(self, name: str) -> Locator:
        """Its item in the list."""
        return self.panel.locator(f'.jdist-item[data-cluster="{name}"]')

    @property
    def table(self) -> Locator:
        return self.panel.get_by_role("grid")

    @property
    def rows(self) -> Locator:
        """Of ranks and nodes, as far as they are drawn."""
        return self.table.locator(".jdist-body > .jdist-row")

    def row(self, rank: int) -> Locator:
        return self.table.locator(f'[data-key="r{rank}"]')

    @property
    def verdict(self) -> Locator:
        return self.panel.locator(".jdist-verdict")

    @property
    def dialog(self) -> Locator:
        return self.page.locator(".jp-Dialog")

    @property
    def notifications(self) -> Locator:
        """All that there were, also those that are no longer on top of the page. Opened by ``show_notifications``."""
        return self.page.locator(".jp-Notification-List")

    def show_notifications(self) -> None:
        """As a click on the bell does."""
        self.do("apputils:display-notifications")
        expect(self.notifications).to_be_visible()

    def choose(self, cluster: str) -> None:
        """Look at it."""
        self.cluster(cluster).locator(".jdist-choose").click()

    def menu(self, rank: int, entry: str) -> None:
        """Of a rank's row, opened by its button."""
        self.row(rank).get_by_role("button", name=f"Actions for rank {rank}").click()
        self.page.get_by_role("menuitem", name=entry).click()

    def do(self, command: str, **arguments: Any) -> None:
        """As the palette does."""
        self.page.evaluate(DO, [command, arguments])

    def widen(self, to: int = 620) -> None:
        """The left area, by its handle, up to this pixel; by default so far that no column is cut off."""
        handle = self.page.locator("#jp-main-split-panel > .lm-SplitPanel-handle:not(.lm-mod-hidden)").first
        box = handle.bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] + box["width"] / 2, 300)
        self.page.mouse.down()
        self.page.mouse.move(to, 300, steps=4)
        self.page.mouse.up()

    def serious_findings(self, within: str = "#jdist-panel") -> list[str]:
        """What an accessibility check finds that keeps somebody from using it."""
        return findings(self.page, within)

    def findings_in_all_themes(self, within: str = "#jdist-panel") -> list[str]:
        """The same, in the light, the dark and the high contrast theme."""
        return findings_in_all_themes(self.page, within)


@contextlib.contextmanager
def panelled(lab: Lab, **options: Any) -> Iterator[Panelled]:
    """A page with the panel open and no notebook."""
    with lab.open_page(**options) as page:
        shown = Panelled(page)
        shown.open()
        yield shown


def shows(page: Page, text: str) -> None:
    """Wait until it stands in the page's terminal, the one in front."""
    page.wait_for_function(SHOWS, arg=text, timeout=LONG * 1000)


def type_in_terminal(page: Page, text: str) -> None:
    """Type a line into the page's terminal."""
    page.locator(".jp-Terminal").last.click()
    page.keyboard.type(f"{text}\n")


def seconds_until(act: Callable[[], None], shown: Locator) -> float:
    """From an act to what it changes on the screen."""
    began = time.monotonic()
    act()
    shown.wait_for(timeout=LONG * 1000)
    return time.monotonic() - began
