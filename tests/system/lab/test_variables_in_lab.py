"""The section of variables in a real JupyterLab: folded at first, filtered, sorted, opened, compared and deleted."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Request, Route, expect

import jdist
from support.lab.browsing import Lab
from support.lab.panelled import Panelled

pytestmark = pytest.mark.usefixtures("traces")

HAS_THEME = "name => document.body.dataset.jpThemeName === name"
CELL = """%%dist
weights = torch.linspace(-1, 1, 16 * 16).reshape(16, 16) * (1 + rank // 2)
batch = torch.zeros(rank + 1, 4)
lr = 0.1
if rank == 2: only_here = {'a': weights}"""


def test_the_section_of_variables(lab: Lab, cluster: jdist.Cluster) -> None:
    cells = [
        "%load_ext jdist\n%dist attach shared",
        CELL,
        "%%dist\nlater = 1",
        "%%dist\nweights = torch.full((16, 16), 7.0 + rank // 2)",
        "",
    ]
    with lab.open_notebook(cells, name="vars.ipynb", viewport={"width": 1500, "height": 1000}) as notebook:
        asked: list[str] = []

        def note(request: Request) -> None:
            if "/variables" in request.url:
                asked.append(request.url)

        notebook.page.on("request", note)
        notebook.run(0)
        notebook.run(1)
        panel = Panelled(notebook.page)
        panel.open()
        panel.choose("shared")
        expect(panel.row(3)).to_contain_text("idle")
        assert asked == [], "nobody looks at the variables yet"

        panel.panel.get_by_role("heading", name="Variables").click()
        table = panel.panel.get_by_role("table", name="Variables")

        def row(name: str) -> Locator:
            button = notebook.page.get_by_role("button", name=name, exact=True)
            return table.get_by_role("row").filter(has=button)

        expect(row("weights")).to_contain_text("Tensor [16, 16] float32")
        expect(row("weights")).to_contain_text("same metadata")
        expect(row("lr")).to_contain_text("equal")
        expect(row("batch")).to_contain_text("differs")
        expect(row("only_here")).to_contain_text("missing on 0-1,3")

        notebook.run(2)
        expect(row("later")).to_contain_text("equal")

        field = panel.panel.get_by_role("searchbox", name="Filter variables")
        field.fill("*e*")
        expect(row("lr")).to_have_count(0)
        field.fill("")
        table.get_by_role("button", name="Bytes").click()
        first = table.locator("tbody tr").first
        expect(first).to_contain_text("1 KiB")

        row("weights").get_by_role("button").click()
        values = panel.panel.get_by_role("list", name="Values of weights by rank")
        expect(values.get_by_role("listitem")).to_have_count(2)
        expect(values).to_contain_text("[2-3]")
        expect(values.locator("canvas")).to_have_count(2)
        bars = values.get_by_role("img", name="256 elements from -2 to 2 in 32 bins")
        expect(bars).to_have_count(2)
        expect(values.get_by_role("listitem").first.get_by_role("status")).to_contain_text("16 elements, 6.3 %")
        bars.first.focus()
        notebook.page.keyboard.press("End")
        expect(values.get_by_role("listitem").first.get_by_role("status")).to_have_text("1.875 to 2: 0 elements, 0.0 %")
        bars.last.hover(position={"x": 2, "y": 20})
        expect(values.get_by_role("listitem").last.get_by_role("status")).to_contain_text("-2 to -1.875: 8 elements")
        panel.panel.get_by_role("button", name="Check equality").click()
        expect(panel.panel.locator(".jdist-variable-details")).to_contain_text(
            re.compile("weights at index .* differs")
        )
        for width in (245, 320):
            panel.widen(33 + width)
            for theme in ("JupyterLab Dark", "JupyterLab Light"):
                panel.do("apputils:change-theme", theme=theme)
                notebook.page.wait_for_function(HAS_THEME, arg=theme)
                bars.last.scroll_into_view_if_needed()
                inner, outer = bars.last.bounding_box(), panel.panel.bounding_box()
                assert inner is not None
                assert outer is not None
                assert inner["x"] >= outer["x"]
                assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]
                assert panel.serious_findings() == []
                notebook.picture(f"histogram-{width}-{theme.removeprefix('JupyterLab ')}")
        notebook.picture("variables")
        panel.widen()
        values.get_by_role("img").last.scroll_into_view_if_needed()
        notebook.picture("variables-wide")
        assert panel.findings_in_all_themes() == []

        expect(values).to_contain_text("min-2")
        notebook.run(3)
        expect(values).to_contain_text("min7")  # what is open is read again after a cell
        expect(values).not_to_contain_text("min-2")
        details = panel.panel.locator(".jdist-variable-details")
        expect(details).to_contain_text("The contents may have changed since they were compared.")
        expect(details).not_to_contain_text("before the last cell")

        late: list[Route] = []

        def hold(route: Route) -> None:
            late.append(route)

        notebook.page.route(re.compile(r"/variables(\?|$)"), hold, times=1)
        panel.panel.get_by_role("button", name="List the variables again").click()
        panel.panel.get_by_role("button", name="Check equality").click()
        expect(details).to_contain_text(re.compile("weights at index .* differs"))
        expect(details).not_to_contain_text("may have changed")
        with notebook.page.expect_response(re.compile("/variables/show")):
            late[0].continue_()
        expect(details).to_contain_text(re.compile("weights at index .* differs"))

        panel.panel.get_by_role("button", name="Pull into the notebook").click()
        expect(notebook.page.locator(".jp-Notebook")).to_contain_text("%dist pull weights")

        panel.row(0).click()
        panel.panel.get_by_role("button", name="Delete…").click()
        expect(panel.dialog).to_contain_text("Delete weights on ranks 0?")
        assert panel.findings_in_all_themes(".jp-Dialog") == []
        panel.dialog.get_by_role("button", name="Delete").click()
        expect(row("weights")).to_contain_text("missing on 0")
        cluster.delete("weights, batch, lr, only_here, later")
        assert not notebook.complaints
