"""A run's output in a real JupyterLab with a real cluster of two nodes: by rank, live, and with suggested actions."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

import jdist
from jdist.core.messages.runs import Display, Text
from jdist.core.outcome import Outcome
from jdist.core.topology import Topology
from jdist.notebook.output.render import render
from jdist.notebook.output.run_json import MIME
from jdist.notebook.output.run_view import RunView
from jdist.notebook.output.transcript import Transcript
from support.lab.accessibility import DARK, findings_in_all_themes, use_theme
from support.lab.browsing import Lab, LabNotebook

pytestmark = pytest.mark.usefixtures("traces")

PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # one pixel
)
RUN = ".jdist-Run"
# The last has cells inserted below it.
ATTACH, SAYS, SHOWS, FAILS, HANGS, LIVES, BARS, MANY_BARS, DETACH, MANY_RANKS, LACKS = range(11)
CELLS = [
    "%load_ext jdist\n%dist attach shared\nwidth = 32",
    """%%dist
import sys
print('the same everywhere')
print('the share of rank', 'abcd'[rank], 'is', rank * 0.5)
if rank == 1: print('careful', file=sys.stderr)
torch.ones(3)""",
    f"""%%dist
from IPython.display import HTML, Image, Latex, display
import base64
display(HTML(f'<table><tr><th>rank</th><td>{{rank}}</td></tr></table>'))
display(Latex('$x^2$'))
display(Image(base64.b64decode('{PICTURE}') + bytes([rank]), format='png'))
print('\\x1b[31mred\\x1b[0m')""",
    "%%dist\nif rank == 2:\n    raise ValueError('bad shard')\ndist.barrier()",
    "%%dist\nif rank != 1:\n    dist.all_reduce(torch.ones(1))",
    """%%dist
import os, time
i = 0
while not os.path.exists('SIGNAL'):
    print('line', i, 'of rank', 'abcd'[rank])
    i += 1
    time.sleep(0.02)""",
    """%%dist
import os, time
from tqdm.auto import tqdm
for epoch in tqdm(range(2), desc='epoch', mininterval=0):
    for batch in tqdm(range(100), desc='batch', leave=False, mininterval=0):
        if (epoch, batch) == (1, 20 + 9 * rank):
            while not os.path.exists('SIGNAL'): time.sleep(0.02)""",
    # a cluster of 64 ranks that nobody has
    """import os, time
from IPython.display import display
from jdist.core.messages.runs import Text
from jdist.notebook.output.render import render
from jdist.notebook.output.run_view import RunView
from jdist.notebook.output.transcript import Transcript
transcript = Transcript(range(64))
def drawn(done):
    for rank in range(64):
        at = done + rank % 7
        bar = f"\\rtrain:  {at}%|{'█' * (at // 5):<20}| {at}/100 [00:12<00:17, 9.1it/s, loss={1 / (1 + rank):.3f}]"
        transcript.feed(Text((rank,), "stderr", bar))
    ranks = tuple(range(64))
    return render(RunView(run=7, ranks=ranks, state="running", elapsed=done, blocks=transcript.blocks()))
handle = display(drawn(40), raw=True, display_id=True)
done = 40
while not os.path.exists('SIGNAL'):
    done = 40 + (done + 1) % 40
    handle.update(drawn(done), raw=True)
    time.sleep(0.1)
handle.update(drawn(90), raw=True)""",
    "%dist detach",
    # one of 64 ranks fails, and its neighbours with it
    """from IPython.display import display
from jdist.core.messages.runs import Text
from jdist.core.outcome import ErrorInfo, Outcome
from jdist.notebook.output.render import render
from jdist.notebook.output.run_view import RunView
from jdist.notebook.output.transcript import Transcript
transcript, ranks = Transcript(range(64)), tuple(range(64))
for step in range(3):
    for at in ranks:
        rank = at * 37 % 64
        loss = 'nan' if (step, rank) == (1, 17) else f'{step + rank / 100:.2f}'
        transcript.feed(Text((rank,), 'stdout', f'step {step} loss {loss}\\n'))
    transcript.feed(Text((0, 5, 6, 7, 57), 'stdout', 'checkpoint\\n'))
    for rank in (0, 5, 6, 7, 57):
        transcript.feed(Text((rank,), 'stdout', f'wrote {step + rank} files\\n'))
outcomes = dict.fromkeys(ranks, Outcome(kind='value'))
outcomes[2] = Outcome(kind='error', error=ErrorInfo('ValueError', 'bad', ('ValueError: bad',), 3, 'train()'))
outcomes |= {r: Outcome(kind='error', error=ErrorInfo('RuntimeError', 'closed', (), r, 'x', True)) for r in (1, 3)}
view = RunView(run=7, ranks=ranks, state='done', outcomes=outcomes, blocks=transcript.blocks())
display(render(view), raw=True)""",
    """%%dist
print('loss', rank / 4)
print('sum', rank, [rank] * 2)
layers = 2 * width""",
]


@pytest.fixture(scope="module")
def opened(lab: Lab, signal_file: Path) -> Iterator[LabNotebook]:
    cells = [cell.replace("SIGNAL", str(signal_file)) for cell in CELLS]
    with lab.open_notebook(cells, name="output.ipynb", viewport={"width": 1280, "height": 1000}) as notebook:
        yield notebook
        assert not notebook.complaints


@pytest.fixture
def notebook(opened: LabNotebook, cluster: jdist.Cluster) -> Iterator[LabNotebook]:
    """It uses the shared cluster."""
    opened.run(ATTACH)
    yield opened
    opened.run(DETACH)


def tabs(output: Locator) -> Locator:
    return output.get_by_role("tab")


def body(output: Locator) -> Locator:
    return output.locator(".jdist-RunBody")


def test_all_ranks_or_one(notebook: LabNotebook) -> None:
    notebook.run(SAYS)
    output = notebook.output(SAYS)
    expect(tabs(output)).to_have_count(5)
    expect(tabs(output).nth(1)).to_have_attribute("aria-label", re.compile(r"^rank 0, done after "))
    said = body(output).inner_text()
    assert said.count("the same everywhere") == 1
    assert said.count("tensor([1., 1., 1.])") == 1
    expect(output.get_by_title("ranks 0-3", exact=True).first).to_be_visible()
    expect(output.get_by_title("ranks 1, standard error")).to_contain_text("err")
    tabs(output).nth(3).click()
    expect(body(output)).to_contain_text("the share of rank c is 1.0")
    assert "rank a" not in body(output).inner_text()
    assert "careful" not in body(output).inner_text()
    assert "the same everywhere" in body(output).inner_text()
    expect(output.locator(".jdist-RunFooter")).to_contain_text(re.compile(r"run \d+ · 4 ranks · "))
    assert findings_in_all_themes(notebook.page, RUN) == []


def test_displays_are_shown_by_rank_and_not_stored_twice(notebook: LabNotebook) -> None:
    notebook.run(SHOWS)
    output = notebook.output(SHOWS)
    expect(body(output).locator("img")).to_have_count(4)
    expect(body(output).locator("table")).to_have_count(4)
    expect(body(output).locator(".jp-RenderedLatex mjx-container, .jp-RenderedLatex .MathJax")).to_have_count(1)
    red = body(output).locator("pre span.ansi-red-fg").first
    expect(red).to_have_text("red")
    tabs(output).nth(2).click()
    expect(body(output).locator("img")).to_have_count(1)
    expect(body(output).locator("table")).to_have_text(re.compile(r"rank\s*1"))
    image = body(output).locator("img").get_attribute("src") or ""
    assert base64.b64decode(image.split(",")[1])[-1] == 1
    notebook.picture("run-output-displays", output)
    bundle = saved_bundle(notebook, SHOWS)
    assert PICTURE[:40] not in json.dumps(bundle[MIME])


def saved_bundle(notebook: LabNotebook, index: int) -> dict[str, Any]:
    """A cell's first output as it would be saved."""
    found = notebook.page.evaluate(
        "i => window.jupyterapp.shell.currentWidget.content.model.cells.get(i).toJSON().outputs[0].data", index
    )
    return dict(found)


def test_a_failure_comes_first_and_its_rank_too(notebook: LabNotebook) -> None:
    notebook.run(FAILS)
    output = notebook.output(FAILS)
    expect(tabs(output).nth(0)).to_have_text("All · 1 failed")
    expect(tabs(output).nth(1)).to_have_text(re.compile(r"^✗ 2 failed · "))
    expect(tabs(output).nth(1)).to_have_attribute("aria-label", re.compile("^rank 2, failed after"))
    first = output.locator(".jdist-RunFailure").first
    expect(first).to_contain_text("failed: ValueError: bad shard")
    said = output.locator(".jdist-RunFailure, .jdist-RunVerdict").filter(visible=True)
    expect(said.last).to_contain_text("has not entered barrier")  # the failure that led to it stands above it
    expect(first.get_by_role("button", name="traceback")).to_have_attribute("aria-expanded", "true")
    expect(first).to_contain_text("raise ValueError('bad shard')")
    notebook.picture("run-output-failure", notebook.cell(FAILS))
    tabs(output).nth(2).click()
    expect(output.locator(".jdist-RunFailure")).to_have_count(1)
    expect(output.locator(".jdist-RunFailure")).to_contain_text("interrupted")
    assert findings_in_all_themes(notebook.page, RUN) == []


def test_lines_are_joined_as_in_text_and_a_missing_name_has_a_button(notebook: LabNotebook) -> None:
    notebook.run(LACKS)
    output = notebook.output(LACKS)
    lines = body(output).locator(".jdist-RunSegment")
    shown = [(line.locator(".jdist-RunRanks").inner_text(), line.locator("pre").inner_text()) for line in lines.all()]
    sums = [(str(rank), f"sum {rank} [{rank}, {rank}]") for rank in range(4)]
    assert shown == [("0-3", "loss 0.0 | 0.25 | 0.5 | 0.75"), *sums]
    tabs(output).nth(3).click()
    expect(lines).to_have_text([re.compile(r"^loss 0\.5$"), re.compile(r"^sum 2 \[2, 2\]$")])
    tabs(output).nth(0).click()
    failure = output.locator(".jdist-RunFailure")
    expect(failure).to_contain_text("NameError: name 'width' is not defined")
    expect(failure).to_contain_text("copy the notebook's")
    notebook.picture("run-output-missing-name", notebook.cell(LACKS))
    assert findings_in_all_themes(notebook.page, RUN) == []
    failure.get_by_role("button", name="%dist push width").click()
    expect(failure).to_contain_text("inserted in the cell below")
    expect(notebook.cell(LACKS + 1)).to_contain_text("%dist push width")


def test_a_suggested_action_for_a_hang_is_a_button(notebook: LabNotebook) -> None:
    notebook.start(HANGS)
    output = notebook.output(HANGS)
    verdict = output.get_by_role("status").filter(has_text="cannot finish")
    expect(verdict).to_contain_text("rank 1")
    notebook.picture("run-output-hang", output)
    assert findings_in_all_themes(notebook.page, RUN) == []
    began = time.monotonic()
    verdict.get_by_role("button", name="%dist interrupt").click()
    expect(output.locator(".jdist-RunFailure").first).to_contain_text("interrupted")
    print(f"from the click to the run's end on the screen: {time.monotonic() - began:.2f} s")
    notebook.until_over(HANGS)
    expect(verdict.get_by_role("button")).to_have_count(0)


def test_what_is_chosen_focused_and_scrolled_to_stays_while_the_run_goes_on(
    notebook: LabNotebook, signal_file: Path
) -> None:
    signal_file.unlink(missing_ok=True)
    notebook.start(LIVES)
    output, page = notebook.output(LIVES), notebook.page
    try:
        expect(tabs(output).nth(1)).to_have_attribute("aria-label", "rank 0, running")
        active = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
        tabs(output).nth(0).focus()
        before = page.evaluate(active)
        for key, rank in (("ArrowRight", "0"), ("ArrowRight", "1"), ("End", "3"), ("ArrowLeft", "2")):
            page.keyboard.press(key)
            expect(output.locator(f'[role=tab][data-rank="{rank}"]')).to_be_focused()
        assert page.evaluate(active) == before, "the notebook's own keys are others"
        expect(body(output)).to_contain_text("line 70 of rank c")
        assert "rank a" not in body(output).inner_text()
        expect(body(output)).to_have_class(re.compile("jdist-mod-long"))
        is_at_end = "e => e.scrollTop + e.clientHeight >= e.scrollHeight - 30 && e.scrollTop > 0"
        page.wait_for_function(is_at_end, arg=body(output).element_handle())  # it follows its end
        body(output).evaluate("e => { e.scrollTop = 10; }")
        text = "e => e.textContent.length"
        length = body(output).evaluate(text)
        page.wait_for_function(f"([e, n]) => ({text})(e) > n", arg=[body(output).element_handle(), length])
        assert body(output).evaluate("e => e.scrollTop") == 10, "who has scrolled up stays there"
        expect(output.locator(".jdist-RunFooter")).to_contain_text("0 of 4 ranks done")
    finally:
        signal_file.touch()
        notebook.until_over(LIVES)
    chosen = output.locator('[role=tab][data-rank="2"]')
    expect(chosen).to_have_attribute("aria-label", re.compile("^rank 2, done after"))
    expect(chosen).to_be_focused()
    expect(chosen).to_have_attribute("aria-selected", "true")
    assert body(output).evaluate("e => e.scrollTop") == 10
    assert findings_in_all_themes(notebook.page, RUN) == []


def test_bars_move_by_rank(notebook: LabNotebook, signal_file: Path) -> None:
    signal_file.unlink(missing_ok=True)
    notebook.start(BARS)
    output = notebook.output(BARS)
    try:
        for rank in range(4):
            at = 20 + 9 * rank
            expect(body(output)).to_contain_text(re.compile(rf"batch: +\d+%\|.*\| {at}/100 \["))
            expect(output.get_by_title(f"rank {rank}", exact=True).first).to_be_visible()
        expect(body(output)).not_to_contain_text("err")
        notebook.picture("run-output-bars", output)
    finally:
        signal_file.touch()
        notebook.until_over(BARS)
    expect(body(output)).to_contain_text("100%")
    expect(body(output)).not_to_contain_text("batch")
    assert findings_in_all_themes(notebook.page, RUN) == []


def test_bars_of_many_ranks_are_one_that_stays_open(notebook: LabNotebook, signal_file: Path) -> None:
    signal_file.unlink(missing_ok=True)
    notebook.start(MANY_BARS)
    output = notebook.output(MANY_BARS)
    bar = body(output).locator("summary")
    try:
        expect(bar).to_have_text(re.compile(r"^train \d+-\d+ % ━+─*╌+ \d+-\d+/100 · slowest 10 ranks$"))
        expect(body(output)).not_to_contain_text("loss=")
        notebook.picture("run-output-many-bars", output)
        bar.click()
        expect(body(output)).to_contain_text(re.compile(r"\[63\] train: .*loss=0.016"))
        before = bar.inner_text()
        expect(bar).not_to_have_text(before)
        expect(bar).to_be_focused()
        notebook.picture("run-output-many-bars-open", output)
        tabs(output).nth(4).click()
        expect(body(output)).to_contain_text("loss=0.250")
        tabs(output).nth(0).click()
    finally:
        signal_file.touch()
        notebook.until_over(MANY_BARS)
    expect(bar).to_have_text(re.compile(r"^train 90-96 %"))
    assert findings_in_all_themes(notebook.page, RUN) == []


EVIL = (
    "<b>kept</b><script>window.hacked = 'script'</script>"
    "<img src='x' onerror=\"window.hacked = 'image'\"><a href='javascript:window.hacked=1'>link</a>"
)


def made_up(ranks: int, **changes: Any) -> dict[str, Any]:
    """A run's bundle as it is saved, of a cluster that nobody has."""
    transcript = Transcript(range(ranks))
    for rank in range(ranks):
        transcript.feed(Text((rank,), "stdout", f"shard {rank} of {'even' if rank % 2 else 'odd'} ranks\n"))
    transcript.feed(Display((1,), {"text/plain": "evil", "text/html": EVIL}))
    outcomes = {rank: Outcome(kind="lost" if rank == 9 else "value", duration=0.5) for rank in range(ranks)}
    view = RunView(
        run=7,
        ranks=tuple(range(ranks)),
        state="done",
        elapsed=0.6,
        blocks=transcript.blocks(),
        outcomes=outcomes,
        topology=Topology((8,) * (ranks // 8), tuple(f"host{i}" for i in range(ranks // 8))),
        cluster="nobody's",
    )
    return {**render(view), **changes}


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def test_a_saved_notebook_with_many_ranks_that_nobody_trusts(lab: Lab) -> None:
    other = made_up(64)
    other[MIME] = {**other[MIME], "version": 99}
    outputs = [made_up(64), other]
    cells = [
        {
            "cell_type": "code",
            "id": f"cell-{i}",
            "metadata": {},
            "execution_count": 1,
            "source": "%%dist\n...",
            "outputs": [{"output_type": "display_data", "metadata": {}, "data": data}],
        }
        for i, data in enumerate(outputs)
    ]
    content = {"cells": cells, "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}
    (lab.server.notebooks / "saved.ipynb").write_text(json.dumps(content))
    with lab.open_page("lab/tree/saved.ipynb", color_scheme="dark") as page:
        notebook = LabNotebook(page, lab.pictures)
        notebook.until_ready()
        output = notebook.output(0)
        expect(tabs(output)).to_have_count(65)
        strip = output.locator(".jdist-RunTabs.jdist-mod-strip")
        box = strip.bounding_box()
        assert box is not None
        assert box["height"] < 150
        expect(output.get_by_role("tab", name="rank 9, lost after 0.50 s")).to_have_text("† 9")
        expect(output.locator(".jdist-RunFailure")).to_contain_text("rank 9 (node 1, host1) lost")
        expect(body(output).locator("b", has_text="kept")).to_be_visible()
        tabs(output).nth(0).focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        expect(body(output).locator("b", has_text="kept")).to_be_visible()
        page.keyboard.press("ArrowDown")
        below = page.evaluate("() => Number(document.activeElement.dataset.rank)")
        assert below > 5
        expect(body(output)).to_contain_text(f"shard {below} of")
        notebook.picture("run-output-strip", output)
        expect(notebook.output(1)).to_contain_text("shard 1 of")  # another version's: its HTML
        assert page.evaluate("() => window.hacked") is None
        assert output.locator("script, [onerror], [href^=javascript]").count() == 0
        use_theme(page, DARK)
        notebook.picture("run-output-dark", output)
        for part in (RUN, ".jp-RenderedHTML"):
            assert findings_in_all_themes(page, part) == []
        notebook.end_kernel()


def test_of_many_ranks_each_number_can_be_told_whose_it_is_and_echoes_are_one_line(opened: LabNotebook) -> None:
    opened.run(MANY_RANKS)
    output = opened.output(MANY_RANKS)
    numbers = body(output).locator("summary").nth(0)
    expect(numbers).to_have_text("step 0 loss 0.00 … 0.63 (mean 0.315)")
    expect(body(output)).to_contain_text("step 1 loss 1.00 … 1.63 (mean 1.317) · nan on rank 17")
    expect(body(output)).to_contain_text("57wrote 57 files")
    echoes = output.locator(".jdist-RunEchoes")
    expect(echoes.locator("summary")).to_have_text("ranks 1,3 failed because of the first failure")
    expect(output.locator(".jdist-RunFailure:visible")).to_have_count(1)
    opened.picture("run-output-many-ranks", output)
    numbers.click()
    expect(body(output)).to_contain_text("[17] step 0 loss 0.17")
    echoes.locator("summary").click()
    expect(output.locator(".jdist-RunFailure:visible")).to_have_count(3)
    opened.picture("run-output-many-ranks-open", output)
    assert findings_in_all_themes(opened.page, RUN) == []
