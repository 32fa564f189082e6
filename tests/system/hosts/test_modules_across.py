"""Modules beside the notebook, on nodes that have never seen its directory: sent when a cell imports one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import jdist
from support.hosts.namespaces import Bed

Start = Callable[..., jdist.Cluster]


def test_the_first_import_sends_the_directory_and_the_cell_goes_on(across: Start, hosts: Bed, project: Path) -> None:
    own = across()
    run = own.run("import helper, parts.one\nhelper.answer() + parts.one.ONE")
    assert run.values == dict.fromkeys(range(4), 2)
    line = f"jdist: helper is not on nodes 0-1: synced 5 files of {project} to them\n"
    assert [run.outcomes[r].stderr for r in range(4)] == [line] * 4
    next_run = own.run("import sys, random, late\nhelper.__file__, random.__file__, sys.path[0]")
    assert [next_run.outcomes[r].stderr for r in range(4)] == [""] * 4
    places = next_run.values
    assert all(file.endswith(f"/{project.name}/helper.py") for file, _, _ in places.values())
    assert all("/project-" not in file and "/project-" not in first for _, file, first in places.values())

    (project / "helper.py").write_text((project / "helper.py").read_text().replace("ANSWER = 1", "ANSWER = 2"))
    (project / "fresh.py").write_text("HERE = True\n")
    changed = own.run("import fresh\nhelper.answer(), fresh.HERE")
    assert changed.values == dict.fromkeys(range(4), (2, True))
    assert changed.outcomes[3].stderr == "jdist: module helper has changed and was loaded again\n"

    missing = own.run("import no_such_module", check=False)
    assert {missing.outcomes[r].error.evalue for r in range(4)} == {"No module named 'no_such_module'"}
    assert missing.outcomes[0].stderr == ""

    own.restart([3])
    assert own.run("import helper; helper.answer()", [3]).values == {3: 2}
    own.add_node(1)
    assert own.run("import helper; helper.answer()", [4]).values == {4: 2}


def test_processes_that_a_cell_starts_find_what_was_sent(across: Start, hosts: Bed, project: Path) -> None:
    own = across()
    (project / "script.py").write_text("import sys, late; print('script', late.NAME, sys.argv[1])\n")
    ran = own.run_script("script.py", ["now"])
    assert [ran.outcomes[rank].stdout for rank in range(4)] == ["script late now\n"] * 4
    pools = dedent("""
        import helper, multiprocessing
        from torch.utils.data import DataLoader
        def squares(method):
            with multiprocessing.get_context(method).Pool(1) as pool:
                return pool.map(helper.square, [2, 3])
        def load(method):
            return [int(x) for x in DataLoader(helper.Numbers(), num_workers=1, multiprocessing_context=method)]
        [(squares(method), load(method)) for method in ("fork", "spawn")]
    """)
    assert own.run(pools, [0, 2], timeout=120).values == dict.fromkeys((0, 2), [([4, 9], [1, 2])] * 2)
    own.run("import torch.multiprocessing; torch.multiprocessing.spawn(helper.show, ('/tmp',), 2)", [2], timeout=120)
    assert [(hosts.nodes[1].tmp / name).read_text() for name in "01"] == ["late", "late"]


def test_what_cannot_be_sent_is_missing_and_the_cell_says_why(across: Start, hosts: Bed, project: Path) -> None:
    """Of a directory that is too large, what is imported is sent, unless that is too large by itself."""
    own, bulky = across(), project / "bulky"
    bulky.mkdir()
    (bulky / "__init__.py").touch()
    with (bulky / "corpus").open("wb") as f:
        f.truncate(60_000_000)
    run = own.run("import bulky", check=False)
    assert {o.error.evalue for o in run.outcomes.values() if o.error} == {"No module named 'bulky'"}
    size = f"bulky in {project} has 60.0 MB that git does not ignore, more than 50.0 MB; `sync {bulky}` copies it"
    assert run.outcomes[2].stderr == f"jdist: bulky was not synced to the nodes that lack it: {size}\n"

    go = f"/tmp/go-{project.name}"
    code = f"import pathlib, time\nwhile not pathlib.Path({go!r}).exists(): time.sleep(0.05)\nimport helper"
    waiting, name = own.run_async(code, [2]), own.name
    own.detach()
    with jdist.Cluster.attach(name) as again:
        followed = again.follow(waiting.number)
        (hosts.nodes[1].tmp / Path(go).name).touch()
        assert followed.wait(60)
        error = followed.outcomes[2].error
        assert error is not None
        assert error.evalue == "No module named 'helper'"
        gone = "helper is not on node 1, and the client that has it is gone; `sync` copies it"
        assert followed.outcomes[2].stderr == f"jdist: {gone}\n"

        assert again.run("import helper; helper.answer()").values == dict.fromkeys(range(4), 1)
        for name in ("one", "two"):
            (project / f"{name}.py").write_text(f"print({name!r})\n")
            assert again.run_script(f"{name}.py").outcomes[2].stdout == f"{name}\n"
