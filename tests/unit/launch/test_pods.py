"""What Kubernetes is given: right by the published schemas, and no more than is needed."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import ValidationError

from jdist.core.errors import UsageError
from jdist.core.settings import Settings
from jdist.launch.base import LaunchPlan
from jdist.launch.kubernetes import KubernetesLauncher
from jdist.launch.pods import PodSpec, objects, stateful_set, to_yaml
from support.kubes import check

LINE = "jdist1.abc_-"
ALL = PodSpec(
    image="registry.example/lab:1.2",
    name="jdist-c1-0a1b2c3d",
    nnodes=3,
    nproc=8,
    namespace="lab",
    service_account="trainer",
    python="/opt/venv/bin/python",
    gpus=8,
    cpu="16",
    memory="64Gi",
    user=1000,
    pull_secret="registry",
    env=(("NCCL_DEBUG", "INFO"), ("ODD", 'a: "b"\n#c')),
    fork=False,
)
LEAST = PodSpec(image="lab", name="a", nnodes=1)


@pytest.mark.parametrize("pods", [ALL, LEAST], ids=["all", "least"])
def test_every_object_is_right_by_the_published_schemas(pods: PodSpec) -> None:
    for made in objects(pods, LINE):
        check(made)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made["spec"].pop("serviceName") and made["spec"].pop("selector"),
        lambda made: made["spec"].update(replica=2),
        lambda made: made["spec"]["template"]["spec"].update(containers="none"),
    ],
    ids=["missing", "unknown", "wrong type"],
)
def test_the_check_refuses_what_an_api_server_would(spoil: Any) -> None:
    made = stateful_set(ALL)
    spoil(made)
    with pytest.raises(ValidationError):
        check(made)


@pytest.mark.parametrize("pods", [ALL, LEAST], ids=["all", "least"])
def test_yaml_reads_back_as_it_was(pods: PodSpec) -> None:
    made = objects(pods, LINE)
    assert list(yaml.safe_load_all(to_yaml(made))) == made


def test_the_line_is_in_the_secret_only() -> None:
    service, secret, sts = objects(ALL, LINE)
    (data,) = secret["data"].values()
    assert base64.b64decode(data).decode() == f"{LINE}\n"
    assert LINE not in str((service, sts))
    assert data not in str((service, sts))


def test_a_user_other_than_root_can_read_the_line_and_has_a_home_and_a_name() -> None:
    spec = stateful_set(ALL)["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["fsGroup"] == 1000
    assert spec["volumes"][0]["secret"]["defaultMode"] == 0o440
    env = {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}
    assert (env["HOME"], env["USER"]) == ("/tmp", "jdist")


def test_the_container_runs_join_in_its_ordinals_place_with_the_line_on_its_input(tmp_path: Path) -> None:
    (container,) = stateful_set(ALL)["spec"]["template"]["spec"]["containers"]
    (tmp_path / "join-line").write_text(f"{LINE}\n")
    said = tmp_path / "python"
    said.write_text('#!/bin/sh\necho "$@"; cat\n')
    said.chmod(0o755)
    command = [w.replace("/etc/jdist", str(tmp_path)).replace(ALL.python, str(said)) for w in container["command"]]
    done = subprocess.run(command, env={"POD_NAME": "jdist-c1-12"}, capture_output=True, text=True, check=True)
    assert done.stdout == f"-P -m jdist join --node-rank 12 -n 8 --no-fork -\n{LINE}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--image is needed"),
        (("--image", "i", "--memory", "lots"), "--memory 'lots': write an amount"),
        (("--image", "i", "--namespace", "My_Own"), "--namespace 'My_Own': lower-case"),
        (("--image", "i", "--gpu", "2"), "does not understand --gpu; did you mean --gpus"),
        (("--image", "i", "--gpus"), "--gpus needs a number"),
        (("--image", "i", "--user", "0"), "a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KubernetesLauncher.complete(Settings(name="c1", launcher="kubernetes", launcher_args=words))


def test_labels_are_a_clusters_own_and_fit_everywhere() -> None:
    plans = [
        LaunchPlan(Settings(name=name), log)
        for name in ("c1", "C_1", "x" * 80, "___a")
        for log in ("/home/alice/jdist-c1.log", "/home/bob/jdist-c1.log")
    ]
    labels = [plan.label for plan in plans]
    assert len(set(labels)) == len(plans)
    for label in labels:
        check({"apiVersion": "v1", "kind": "Service", "metadata": {"name": label}, "spec": {}})
        assert len(label) <= 39
        assert label.replace("-", "").isalnum()
        assert label == label.lower()


def test_a_manifest_can_be_made_without_the_client(tmp_path: Path) -> None:
    """The verb is for those who have kubectl."""
    code = "import sys; sys.modules['kubernetes'] = None;from jdist.commands import main; sys.exit(main(sys.argv[1:]))"
    line = tmp_path / "line"
    line.write_text(f"{LINE}\n")
    out = tmp_path / "nodes.yaml"
    words = ["manifest", "kubernetes", "-N", "2", "-n", "8", "--gpus", "--image", "lab", "--name", "a"]
    words += ["--line", str(line), "-o", str(out)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert out.stat().st_mode & 0o777 == 0o600
    made = list(yaml.safe_load_all(out.read_text()))
    assert [m["kind"] for m in made] == ["Service", "Secret", "StatefulSet"]
    (container,) = made[2]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert made[2]["spec"]["replicas"] == 2
    for each in made:
        check(each)
