"""Progress bars of libraries on ranks: text that is drawn over itself, live, whichever notebook they look for."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import jdist
from jdist.core.ranks import RankSet
from jdist.notebook.output.display import RunDisplay
from jdist.notebook.output.screen import Update

WORLD = tuple(range(4))
BAR = r"\[{rank}\] {label}: +{percent}%\|[█▏▎▍▌▋▊▉ ]+\| +{count}/{total} \["


class Frames:
    """A screen that keeps every frame that it was shown, and tells of it."""

    is_live = True

    def __init__(self, on_frame: Callable[[str], None]) -> None:
        self.plain: list[str] = []
        self.html = ""
        self._on_frame = on_frame

    def show(self, bundle: Mapping[str, str]) -> Update:
        def update(bundle: Mapping[str, str]) -> None:
            self.plain.append(bundle["text/plain"])
            self.html = bundle["text/html"]
            self._on_frame(self.plain[-1])

        update(bundle)
        return update

    def ask(self, prompt: str, is_password: bool) -> str:
        raise AssertionError(f"nobody asks in these tests: {prompt}")


def shown(cluster: jdist.Cluster, code: str, on_frame: Callable[[str], None] = lambda _: None) -> Frames:
    """What a notebook shows of a cell while it runs."""
    frames = Frames(on_frame)
    run = cluster.submit(code, WORLD, timeout=60)
    RunDisplay(cluster, run, frames).follow()
    run.check()
    return frames


def shown_until_seen(cluster: jdist.Cluster, code: str, pattern: str) -> Frames:
    """The same of a cell whose ranks wait in `wait_until_seen()` until a frame has the pattern."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen"

        def look(frame: str) -> None:
            if re.search(pattern, frame):
                seen.touch()

        waiting = f"""
import os, time
def wait_until_seen():
    while not os.path.exists({str(seen)!r}): time.sleep(0.02)
"""
        return shown(cluster, waiting + code, look)


@pytest.mark.parametrize("module", ["tqdm", "tqdm.auto", "tqdm.notebook", "tqdm.autonotebook"])
def test_a_bar_moves_on_every_rank(cluster: jdist.Cluster, module: str) -> None:
    code = f"""
from {module} import tqdm, trange
for i in tqdm(range(20), desc=f"rank {{rank}}", mininterval=0):
    if i == 5 + rank: wait_until_seen()
for i in trange(3): pass
"""
    moving = "(?s)" + ".*".join(
        BAR.format(rank=r, label=f"rank {r}", percent=5 * (5 + r), count=5 + r, total=20) for r in WORLD
    )
    frames = shown_until_seen(cluster, code, moving)
    end = frames.plain[-1]
    assert any(re.search(moving, frame) for frame in frames.plain)
    for r in WORLD:
        assert re.search(BAR.format(rank=r, label=f"rank {r}", percent=100, count=20, total=20), end)
    assert end.count("/20") == len(WORLD)
    assert "3/3" in end
    assert "widget" not in end.lower()
    assert "stderr" not in frames.html


def test_bars_below_each_other(cluster: jdist.Cluster) -> None:
    code = """
from tqdm.auto import tqdm, trange
for epoch in trange(30, desc="epoch", mininterval=0):
    for batch in tqdm(range(20), desc="batch", leave=False, mininterval=0):
        if epoch == 2 and batch == 10: wait_until_seen()
    if epoch == 28: tqdm.write("nearly")
print("done")
"""
    moving = "(?s)" + ".*".join(
        BAR.format(rank=r, label=label, percent=percent, count=count, total=total)
        for label, percent, count, total in (("epoch", 7, 2, 30), ("batch", 50, 10, 20))
        for r in WORLD
    )
    frames = shown_until_seen(cluster, code, moving)
    end = frames.plain[-1]
    assert end.count("epoch: 100%") == len(WORLD)
    assert "batch" not in end
    for text in ("nearly", "done"):
        wrote = [RankSet.parse(ranks, cluster.topology) for ranks in re.findall(rf"\[(.+)\] {text}", end)]
        assert sorted(rank for ranks in wrote for rank in ranks) == list(WORLD)
    assert len(end.splitlines()) <= 3 * len(WORLD) + 1


def test_rich(cluster: jdist.Cluster) -> None:
    code = """
import rich, rich.console, rich.progress
with rich.progress.Progress(refresh_per_second=10) as progress:
    down, up = progress.add_task("[red]down", total=10), progress.add_task("up", total=10)
    for i in range(10):
        if i == 5: wait_until_seen()
        progress.update(down, advance=1)
        progress.update(up, advance=0.5)
    print("printed while it moves")
for _ in rich.progress.track(range(10), description="tracked"): pass
rich.print("[bold]bold[/bold]", {"a": 1})
console = rich.console.Console()
print(console.is_jupyter, console.is_terminal)
"""
    frames = shown_until_seen(cluster, code, r"(?s)\[[0-3,-]+\] down ━+╺━+ +50% .*\[[0-3,-]+\] up +━+╺━+ +25% ")
    end = frames.plain[-1]
    assert len(re.findall(r"\[[0-3,-]+\] down ━+ 100%", end)) in range(1, 5)
    assert " 25% " not in end
    assert "[0-3] printed while it moves" in end
    assert "tracked ━" in end
    assert "[0-3] bold\n[0-3] {'a': 1}" in end
    assert "[0-3] False True" in end


def test_widgets_are_one_note(cluster: jdist.Cluster) -> None:
    code = """
import ipywidgets
from IPython.display import clear_output, display
print("stays")
display(ipywidgets.IntProgress(value=3))
box = ipywidgets.Output()
with box: print("inside")
display(box)
for i in range(3):
    with box:
        clear_output(wait=True)
        print("frame", i)
ipywidgets.interact(lambda x: print("x is", x), x=3)
ipywidgets.IntSlider(5)
"""
    frames = shown(cluster, code)
    end = frames.plain[-1]
    names = "IntProgress, IntSlider, interactive"
    assert end.count(f"[0-3] {names}: widgets of ranks are not connected here, ") == 1
    assert end.count("widgets of ranks") == frames.html.count("widgets of ranks") == 1
    assert "(value=" not in end + frames.html
    assert "[0-3] stays" in end
    assert "inside" not in end
    assert re.findall(r"frame \d", end) == ["frame 2"]
    assert "[0-3] x is 3" in end
    assert "Output" not in end


def test_what_is_displayed_is_replaced(cluster: jdist.Cluster) -> None:
    code = """
from IPython.display import HTML, ProgressBar, clear_output, display, update_display
display("at first", display_id="place")
display("second")
update_display(f"replaced by rank {rank}", display_id="place")
handle = display(HTML("<i>old</i>"), display_id=True)
handle.update(HTML("<i>new</i>"))
for i in ProgressBar(5): pass
"""
    frames = shown(cluster, code)
    end = frames.plain[-1]
    assert [f"[{r}] 'replaced by rank {r}'" in end for r in WORLD] == [True] * 4
    assert "at first" not in end
    assert end.index("replaced by rank 3") < end.index("second")
    assert ("<i>new</i>" in frames.html, "<i>old</i>" in frames.html) == (True, False)
    # One line of each, unless ranks were seen beside others that were further.
    assert 1 <= end.count("5/5") <= len(WORLD)
    assert 1 <= end.count("HTML object") <= len(WORLD)
    assert "0/5" not in end

    looped = """
from IPython.display import clear_output
for i in range(50):
    clear_output(wait=True)
    print("now", i)
"""
    assert shown(cluster, looped).plain[-1].splitlines()[0] == "[0-3] now 49"


def test_a_rank_looks_like_a_launched_process_whose_displays_are_a_notebooks(
    fresh_cluster: Callable[..., jdist.Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # of the terminal here; importing readline sets it for processes started later
    cluster = fresh_cluster(2, 2)
    code = """
import os, shutil, subprocess, sys
shell = get_ipython()
subprocess.run(["echo", "from a child"], stdout=sys.stdout, check=True)
(
    hasattr(sys, "ps1"), "IPKernelApp" in shell.config,
    type(shell).__name__, eval("type(shell).__name__", {"shell": shell, "__name__": "rich.console"}),
    type("Derived", (type(shell),), {}).__name__,
    sys.stdout.isatty(), sys.stderr.isatty(), sys.stdout.fileno(), shutil.get_terminal_size()[0],
)
"""
    run = cluster.run(code, timeout=30)
    names = ("ZMQInteractiveShell", "RankShell", "Derived")
    assert run.values == dict.fromkeys(WORLD, (False, False, *names, True, True, 1, 100))
    assert run.outcomes[0].stdout == "from a child\n"
    assert cluster.run("%timeit -n1 -r1 pass").outcomes[3].stdout  # magics are there
