from __future__ import annotations

import re
from typing import Any

import pytest

from jdist.core.errors import UsageError
from jdist.launch.base import find_launcher
from jdist.server.starts import Policy, form_of


def test_what_is_not_asked_is_the_default() -> None:
    policy = Policy(default_args={"launcher": "slurm", "launcher_args": ["-p", "gpu"], "nnodes": 2})
    found = policy.complete({"nproc_per_node": 4, "nnodes": None}, 0)
    assert (found["launcher"], found["launcher_args"], found["nnodes"]) == ("slurm", ("-p", "gpu"), 2)
    assert found["nproc_per_node"] == 4
    assert "idle_timeout" not in found
    assert policy.complete({"launcher": "local", "idle_timeout": 9}, 0)["launcher"] == "local"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "notebook"}, "kind"),
        ({"on_progress": "x"}, "on_progress"),
        ({"nnodes": "many"}, "nnodes"),
        ({"on_death": "pray"}, "pray"),
    ],
)
def test_what_is_no_option_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Policy().complete(asked, 0)


def test_only_allowed_launchers() -> None:
    policy = Policy(allowed_launchers=("slurm", "ssh"))
    assert policy.complete({}, 0)["launcher"] == "slurm"
    assert policy.complete({"launcher": "ssh"}, 0)["launcher"] == "ssh"
    with pytest.raises(UsageError, match="does not allow launcher 'local'"):
        policy.complete({"launcher": "local"}, 0)
    assert policy.launchers(["join", "local", "ssh", "slurm"]) == ["slurm", "ssh"]
    assert Policy(default_args={"launcher": "ssh"}).launchers(["local", "ssh"]) == ["ssh", "local"]


@pytest.mark.parametrize(
    ("asked", "here", "fits"),
    [
        ({"nproc_per_node": 4, "nnodes": 2}, 0, True),
        ({"nproc_per_node": 4, "nnodes": 2}, 1, False),
        ({"nproc_per_node": 8}, 0, True),
        ({"nproc_per_node": "5,3"}, 0, True),
        ({"nproc_per_node": "5,4"}, 0, False),
        ({"nproc_per_node": 9}, 0, False),
    ],
)
def test_all_clusters_together_have_so_many_ranks(asked: dict[str, Any], here: int, fits: bool) -> None:
    policy = Policy(max_ranks=8)
    if fits:
        policy.complete(asked, here)
        return
    with pytest.raises(UsageError, match="allows 8 ranks"):
        policy.complete(asked, here)


@pytest.mark.parametrize("asked", [{}, {"nproc_per_node": 2, "launcher": "slurm"}, {"nproc_per_node": "all"}])
def test_where_ranks_are_limited_their_number_is_said(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="say how many"):
        Policy(max_ranks=8).complete(asked, 0)


def test_each_launcher_says_which_fields_it_has() -> None:
    forms = {name: form_of(name) for name in ("local", "join", "ssh", "slurm", "mpi")}
    assert [name for name, form in forms.items() if form.hosts] == ["ssh", "mpi"]
    assert [name for name, form in forms.items() if form.arguments] == ["slurm", "mpi"]
    assert "--partition" in [option.flag for option in forms["slurm"].options]
    assert not any(form.problem for form in forms.values())


@pytest.mark.parametrize(
    ("launcher", "flag", "accepted", "refused"),
    [
        ("slurm", "--time", "30 90:00 2:00:00 1-12 1-00:30:00 unlimited", "abc 2h 1:2:3:4"),
        ("slurm", "--gpus-per-node", "8 a100:2 a100:2,v100:1", "x a100: -1"),
        ("slurm", "--partition", "gpu gpu,long", ""),
        ("kubernetes", "--gpus", "1 16", "0 x 1.5"),
        ("ray", "--num-gpus", "0 0.5 8", "x 1. -1"),
    ],
)
def test_values_of_options_have_a_pattern(launcher: str, flag: str, accepted: str, refused: str) -> None:
    (option,) = [option for option in find_launcher(launcher).form.options if option.flag == flag]
    values = [*accepted.split(), *refused.split(), "a b"]
    assert [v for v in values if re.fullmatch(option.pattern, v)] == accepted.split()


def test_a_launcher_that_cannot_be_loaded_says_why() -> None:
    assert "there is no launcher 'slurn'" in form_of("slurn").problem
