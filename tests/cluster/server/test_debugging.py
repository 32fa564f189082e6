"""The server's routes with which a browser pauses ranks, looks into them and lets them go on."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

import jdist
from support.lab.browser import LONG, Browser
from support.pauses import TIMEOUT
from support.waits import eventually

pytestmark = [pytest.mark.usefixtures("server", "traces")]

SHARED = "jdist/clusters/shared"
SCRIPT = """import os, time
def wait(end):
    while not os.path.exists(end):
        time.sleep(0.01)
"""


def post(browser: Browser, what: str, **body: Any) -> None:
    status, answer = browser.request("POST", f"{SHARED}/{what}", body)
    assert status in (HTTPStatus.OK, HTTPStatus.ACCEPTED), answer


def rows(browser: Browser) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.get(SHARED)["ranks"]
    return found


def chain(branches: list[dict[str, Any]]) -> list[tuple[str, list[int], list[int]]]:
    """``(function, ranks, those whose cells run there)`` of a tree without branches."""
    found = []
    while branches:
        assert len(branches) == 1, branches
        found.append((branches[0]["frame"]["function"], branches[0]["ranks"], branches[0]["chosen"]))
        branches = branches[0]["children"]
    return found


def test_ranks_are_paused_looked_into_and_continued(browser: Browser, cluster: jdist.Cluster, tmp_path: Path) -> None:
    script, end = tmp_path / "waiting.py", tmp_path / "end"
    script.write_text(SCRIPT)
    cluster.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import waiting; kept = 1")
    function = f"def train(step):\n    waiting.wait({str(end)!r})\n    return step\n"
    call = "torch.no_grad()(train)(step)"  # with a frame of torch between the cell's and the function's
    code = f"{function}for step in (5,):\n    total = {call}\ntotal"
    run = cluster.run(code, background=True, timeout=TIMEOUT)
    assert eventually(lambda: all(row["run"] == run.number for row in rows(browser)), LONG)
    post(browser, "pause", ranks="1-2")
    assert eventually(lambda: [row["rank"] for row in rows(browser) if "paused" in row] == [1, 2], LONG)
    found = rows(browser)
    assert [row["state"] for row in found] == ["running", "paused", "paused", "running"]
    at = found[1]["paused"]
    assert (at["run"], at["reason"], at["function"], at["file"]) == (run.number, "request", "wait", str(script))
    assert at["text"].startswith(f"wait, waiting.py line {at['line']}")
    assert at["of_run"] == 0

    stacks = browser.get(f"{SHARED}/stacks")
    assert chain(stacks["stacks"]) == [("<cell>", [1, 2], []), ("train", [1, 2], []), ("wait", [1, 2], [1, 2])]

    def others() -> list[str]:
        return [each["ranks"] for each in browser.get(f"{SHARED}/stacks")["others"]]

    assert eventually(lambda: others() == ["0,3"], LONG), "ranks that do the same are one row"
    train = stacks["stacks"][0]["children"][0]["frame"]
    assert (train["run"], train["line"]) == (run.number, 2), "the cell whose code it is"
    post(browser, "frame", ranks="2", index=1)
    chosen = chain(browser.get(f"{SHARED}/stacks")["stacks"])
    assert [those for _, _, those in chosen] == [[], [2], [1]]
    assert cluster.run("step", ranks=2).values == {2: 5}, "a cell runs in the frame that was chosen"
    assert browser.request("POST", f"{SHARED}/frame", {"ranks": "2", "index": 7})[0] == HTTPStatus.BAD_REQUEST

    source = f"{SHARED}/ranks/1/source?file="
    assert browser.get(source + str(script))["text"] == SCRIPT
    for rank, file in ((1, "/etc/passwd"), (0, str(script))):
        status, answer = browser.request("GET", f"{SHARED}/ranks/{rank}/source?file={file}")
        assert status == HTTPStatus.BAD_REQUEST, "only a file on the stack of a paused rank"
        assert "root:" not in str(answer)

    end.touch()
    post(browser, "resume", ranks="1", how="return")
    assert eventually(lambda: "about to return" in rows(browser)[1].get("paused", {}).get("text", ""), LONG)
    post(browser, "resume", ranks="1", how="next")
    assert eventually(lambda: rows(browser)[1].get("paused", {}).get("function") == "train", LONG)
    assert rows(browser)[1]["paused"]["of_run"] == run.number
    post(browser, "resume")
    assert run.wait(TIMEOUT)
    assert run.values == dict.fromkeys(range(4), 5)
    assert eventually(lambda: not any("paused" in row for row in rows(browser)), LONG)


@pytest.mark.parametrize(
    ("what", "body", "says"),
    [
        ("pause", {"ranks": "7"}, "7"),
        ("resume", {}, "no rank is paused"),
        ("resume", {"how": "sideways"}, "continue, step"),
        ("resume", {"how": "until", "line": "8"}, "line: a number"),
        ("frame", {"ranks": "0"}, "index"),
        ("frame", {"ranks": "0", "index": 0}, "no rank is paused"),
    ],
)
def test_wrong_words(browser: Browser, cluster: jdist.Cluster, what: str, body: dict[str, Any], says: str) -> None:
    assert eventually(lambda: browser.clusters().get("shared", {}).get("state") == "ready", LONG)
    status, answer = browser.request("POST", f"{SHARED}/{what}", body)
    assert status == HTTPStatus.BAD_REQUEST
    assert says in answer["message"]
    assert cluster.run("rank").values == {r: r for r in range(4)}
