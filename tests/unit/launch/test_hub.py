"""What is written after ``--`` for the Hub, and what a server's environment says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jdist.core.errors import UsageError
from jdist.launch.hub import parse_options, read_access

ENVIRONMENT = {
    "JUPYTERHUB_API_URL": "http://hub:8081/hub/api/",
    "JUPYTERHUB_API_TOKEN": "t0",
    "JUPYTERHUB_USER": "alice",
}


def test_choices_are_text_or_json() -> None:
    options = parse_options(["profile=gpu=big", "cpu:=4", 'volumes:=["a"]', "--kernel", "torch", "empty="])
    assert options.choices == {"profile": "gpu=big", "cpu": 4, "volumes": ["a"], "empty": ""}
    assert options.kernel == "torch"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["profile"], "'profile': write OPTION=VALUE"),
        (["=x"], "write OPTION=VALUE"),
        ([":=1"], "write OPTION=VALUE"),
        (["cpu:=four"], "'four' is no JSON"),
        (["--url", "hub.example.org"], "write https://HUB"),
        (["--queue", "long"], "--queue"),
    ],
)
def test_what_is_no_option_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_options(words)


def test_where_the_hub_is(tmp_path: Path) -> None:
    reach = read_access(parse_options([]), ENVIRONMENT)
    assert (reach.api, reach.user, reach.token, reach.public) == ("http://hub:8081/hub/api", "alice", "t0", "")
    own = {**ENVIRONMENT, "JUPYTERHUB_PUBLIC_URL": "https://hub.example.org/user/alice/"}
    assert read_access(parse_options([]), own).public == "https://hub.example.org"
    in_kubernetes = {**ENVIRONMENT, "PROXY_PUBLIC_SERVICE_HOST": "10.0.0.9", "PROXY_PUBLIC_SERVICE_PORT": "80"}
    assert read_access(parse_options([]), in_kubernetes).public == "http://10.0.0.9:80"
    assert read_access(parse_options(["--url", "https://other"]), own).public == "https://other"
    file = tmp_path / "token"
    file.write_text("t1\n")
    assert read_access(parse_options(["--token-file", str(file)]), ENVIRONMENT).token == "t1"


def test_not_on_a_hub(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="environment lacks JUPYTERHUB_API_URL, JUPYTERHUB_API_TOKEN, JUPYTERHUB_USER"):
        read_access(parse_options([]), {})
    with pytest.raises(UsageError, match="cannot be read"):
        read_access(parse_options(["--token-file", str(tmp_path / "none")]), ENVIRONMENT)
