"""A page with the panel's section of resources, which are made up: waves, with each rank's a little later."""

from __future__ import annotations

import math
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Locator, Page, Route

from support.lab.browsing import Lab
from support.lab.panelled import Panelled

GIB = float(1 << 30)
POINTS = 120


def wave(at: float, share: float, shift: float) -> float:
    """Between 0 and 1; ``at`` in seconds."""
    return max(0.0, min(1.0, share * (0.75 + 0.2 * math.sin(at / 17 + shift) + 0.05 * math.sin(at * 1.3 + shift))))


def node(
    number: int,
    ranks: int,
    seconds: float = 300.0,
    *,
    gpus: int = 0,
    now: float = 0.0,
    cores: int = 64,
    gap: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """A node with so many ranks; nothing is known of the time between the two ages of ``gap``."""
    ages = [0.4 + (seconds - 0.4) * (POINTS - 1 - i) / (POINTS - 1) for i in range(POINTS)]

    def series(share: float, scale: float, shift: float) -> list[float | None]:
        return [
            None if gap and gap[1] <= age <= gap[0] else round(scale * wave(now - age, share, shift), 3) for age in ages
        ]

    def measured(share: float, shift: float, cpu: float, memory: float) -> dict[str, list[float | None]]:
        found = {"cpu": series(share, cpu, shift), "memory": series(share, memory, shift / 9)}
        if gpus:
            found["gpu"] = series(1.1, 1.0, shift)
            found["gpu_memory"] = series(share, 80 * GIB * (1 if memory < 100 * GIB else gpus), shift / 5)
        return found

    first = number * ranks
    return {
        "node": number,
        "hostname": f"host-{number}",
        "cores": cores,
        "memory_total": 256 * GIB,
        "gpus": gpus,
        "gpu_memory_total": 80 * GIB * gpus,
        "ages": ages,
        "series": {
            **measured(0.6, number, cores, 256 * GIB),
            "received": series(0.8, 1.1e9, number),
            "sent": series(0.7, 0.9e9, number + 1),
        },
        "ranks": [
            {"rank": rank, "series": measured(0.8, rank * 0.7, 4 + rank % 3, 24 * GIB)}
            for rank in range(first, first + ranks)
        ],
    }


def run_span(number: int, began: float, ended: float | None, ranks: str = "0-3") -> dict[str, Any]:
    """A run by ages."""
    return {"run": number, "ranks": ranks, "began": began, "ended": ended}


RUNS = [run_span(7, 200, 140), run_span(8, 135, 90), run_span(9, 40, None, "0-1")]
HAS_THEME = "name => document.body.dataset.jpThemeName === name"


class Served:
    """A page with the panel of a cluster that is made up, as are its resources."""

    def __init__(self, page: Page, lab: Lab, ranks: int = 4, nodes: int = 1, gpus: int = 0):
        self.panel = Panelled(page)
        self._pictures = lab.pictures
        self.ranks, self.nodes, self.gpus = ranks, nodes, gpus
        self.more: dict[str, Any] = {"runs": RUNS}
        self.gap: tuple[float, float] | None = None
        self.failure = ""
        self.asked: list[dict[str, str]] = []
        page.route_web_socket(re.compile("/api/events/subscribe"), lambda socket: None)
        page.route("**/jdist/clusters**", self._answer_cluster)
        page.route("**/jdist/clusters/*/resources**", self._answer)

    def _answer_cluster(self, route: Route) -> None:
        found = {"name": "made-up", "state": "ready", "reason": "", "version": "", "backend": "gloo", "generation": 1}
        found |= {"nnodes": self.nodes, "world_size": self.ranks, "ready": self.ranks, "groups": [], "runs": []}
        rank = {"state": "idle", "run": 0, "last_line": "", "is_fresh": False, "death": "", "death_age": 0}
        rank |= {
            "hostname": "host",
            "local_rank": 0,
            "pid": 1,
            "device": "",
            "rss": None,
            "doing": None,
            "progress": [],
        }
        ranks = [{**rank, "rank": r, "node": r * self.nodes // self.ranks} for r in range(self.ranks)]
        is_list = urlsplit(route.request.url).path.endswith("/clusters")
        route.fulfill(json={"clusters": [found]} if is_list else {**found, "ranks": ranks})

    def _answer(self, route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        self.asked.append({name: values[0] for name, values in query.items()})
        if self.failure:
            route.fulfill(status=504, json={"message": self.failure})
            return
        seconds, now = float(query["seconds"][0]), float(len(self.asked))
        each = self.ranks // self.nodes
        nodes = [
            node(n, each, seconds, gpus=self.gpus, now=now, gap=self.gap if n else None) for n in range(self.nodes)
        ]
        route.fulfill(json={"seconds": seconds, "nodes": nodes, "runs": [], "missing": [], **self.more})

    @property
    def section(self) -> Locator:
        return self.panel.panel.locator(".jdist-resources")

    @property
    def charts(self) -> Locator:
        return self.section.get_by_role("img")

    def chart(self, title: str) -> Locator:
        return self.section.get_by_role("img", name=re.compile(f"^{title} of "))

    def title(self, title: str) -> Locator:
        """With the values at the cursor, or the newest ones."""
        return self.section.locator(".jdist-resource-title").filter(has_text=title)

    @property
    def legend(self) -> Locator:
        return self.section.get_by_role("group", name="Ranks in the charts")

    @property
    def values(self) -> Locator:
        """The values at the cursor."""
        return self.panel.page.locator(".jdist-ChartValues:visible")

    def toggle(self) -> None:
        """Expand the section, or collapse it."""
        self.panel.panel.get_by_role("heading", name="Resources").click()

    def select(self, label: str, choice: str) -> None:
        self.section.get_by_role("combobox", name=label).select_option(choice)

    def until_asked(self) -> dict[str, str]:
        """Wait for the next request; what it asks for."""
        with self.panel.page.expect_request("**/resources?**"):
            pass
        return self.asked[-1]

    def picture(self, name: str) -> None:
        """For people to look at."""
        (self._pictures / f"resources-{name}.png").write_bytes(self.panel.page.screenshot())

    def theme(self, name: str) -> None:
        self.panel.do("apputils:change-theme", theme=name)
        self.panel.page.wait_for_function(HAS_THEME, arg=name)
