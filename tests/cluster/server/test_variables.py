"""The server's routes for variables: metadata, contents by rank, equality, deletion."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

import jdist
from support.lab.browser import Browser

pytestmark = [pytest.mark.usefixtures("server", "traces")]

SHARED = "jdist/clusters/shared"


def post(browser: Browser, what: str, **body: Any) -> dict[str, Any]:
    status, answer = browser.request("POST", f"{SHARED}/variables/{what}", body)
    assert status == HTTPStatus.OK, answer
    return answer


def test_variables(browser: Browser, cluster: jdist.Cluster) -> None:
    code = "in_page = torch.full((2, 2), float(rank == 3))\ntext_in_page = 'a secret'\nn_in_page = 5"
    cluster.run(code)
    found = browser.get(f"{SHARED}/variables?pattern=*in_page")
    rows = {row["name"]: row for row in found["variables"]}
    tensor = rows["in_page"]["variants"][0]
    assert (tensor["ranks"], tensor["type"], tensor["shape"], tensor["nbytes"]) == ("0-3", "Tensor", [2, 2], [16, 16])
    assert rows["in_page"]["comparison"] == "alike"
    assert rows["n_in_page"]["variants"][0]["value"] == "5"
    assert rows["text_in_page"]["comparison"] == "equal"
    assert "secret" not in str(found), "metadata has no part of a text"

    shown = post(browser, "show", name="in_page")["values"]
    assert [(row["ranks"], row["description"]["mean"]) for row in shown] == [("0-2", 0.0), ("3", 1.0)]
    assert shown[1]["description"]["thumb"] == [[1.0, 1.0], [1.0, 1.0]]
    checked = post(browser, "check", name="in_page")
    assert checked["is_equal"] is False
    assert "differs: ranks 0-2: 0; rank 3: 1" in checked["text"]

    post(browser, "delete", name="in_page", ranks="0-1")
    (left,) = browser.get(f"{SHARED}/variables?pattern=in_page")["variables"]
    assert left["missing"] == "0-1"
    cluster.delete("in_page, text_in_page, n_in_page")


@pytest.mark.parametrize("name", [None, "", "__import__('os').getcwd()", 3])
def test_only_names_are_accepted(browser: Browser, cluster: jdist.Cluster, name: object) -> None:
    for what in ("show", "check", "delete"):
        status, answer = browser.request("POST", f"{SHARED}/variables/{what}", {"name": name})
        assert (status, answer["message"]) == (HTTPStatus.BAD_REQUEST, "name: a variable's name")
