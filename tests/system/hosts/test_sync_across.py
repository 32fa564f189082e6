"""Code across hosts that share no folder: everything is sent to each, large files through the data port."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import jdist
from support.hosts.namespaces import Bed

HASHES = (
    "import hashlib, pathlib, mod\nhashlib.sha1(pathlib.Path(mod.__file__).with_name('big').read_bytes()).hexdigest()"
)


def test_each_host_gets_what_it_lacks(across: Callable[..., jdist.Cluster], hosts: Bed, tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    (src / "mod.py").write_text("def f():\n    return 1\n")
    big = os.urandom(50 << 20)
    (src / "big").write_bytes(big)
    own = across()
    synced = own.sync(str(src))
    assert synced.nbytes == len(big) + (src / "mod.py").stat().st_size
    found = own.run("import mod, os\nos.stat(mod.__file__).st_ino, mod.f()").values
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[0] != found[2]  # a folder on each host, and none is another's
    name = os.path.basename(os.path.dirname(synced.folder))
    assert all((node.tmp / name / "src" / "mod.py").exists() for node in hosts.nodes[:2])
    assert not (Path("/tmp") / name).exists()
    said = own.run(HASHES, ranks=[0, 2]).values
    assert said == dict.fromkeys((0, 2), hashlib.sha1(big).hexdigest())

    (src / "mod.py").write_text("def f():\n    return 2\n")
    again = own.sync(str(src))
    assert (again.sent, again.changed) == (1, ("mod.py",))
    assert set(own.run("mod.f()").values.values()) == {2}

    (hosts.nodes[1].tmp / name / "src" / "big").unlink()  # somebody tidied up there
    assert own.sync(str(src)).sent == 1
    assert own.run(HASHES, ranks=[2]).values == {2: hashlib.sha1(big).hexdigest()}

    own.add_node(1)
    assert own.run("import mod\nmod.f()").values == dict.fromkeys(range(5), 2)
    assert (hosts.nodes[2].tmp / name / "src" / "big").stat().st_size == len(big)

    full = hosts.nodes[1].tmp / name / "src"
    hosts.nodes[1].run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(Path("/tmp") / name / "src"))
    try:
        with pytest.raises(jdist.UsageError, match=rf"node 1 \({hosts.nodes[1].name}\): .*No space left"):
            own.sync(str(src))
    finally:
        hosts.nodes[1].run("umount", "-l", str(Path("/tmp") / name / "src"))
    assert (full / "big").exists()
