"""mpirun's command lines in both families' words."""

from __future__ import annotations

import pytest

from jdist.core.errors import UsageError
from jdist.core.settings import Host
from jdist.launch.mpi import HOSTFILES, HOSTS, advice, check_hosts, family_of, mpirun_command, take_option


@pytest.mark.parametrize(
    ("said", "family"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/", "openmpi"),
        ("mpirun (Open MPI) 5.0.3", "openmpi"),
        ("HYDRA build details:\n    Version:  4.0.2", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11", "mpich"),
        ("mpirun: a script of mine", None),
        ("", None),
    ],
)
def test_whose_mpirun_it_is(said: str, family: str | None) -> None:
    assert family_of(said) == family


def test_one_process_a_node_that_all_read_the_line() -> None:
    command = mpirun_command("mpirun", "openmpi", 3, ["--mca", "x", "y"], is_root=True)
    assert command[:4] == ["mpirun", "--mca", "x", "y"]
    assert command.count("--allow-run-as-root") == 1
    assert " ".join(command).endswith("-np 3 --map-by ppr:1:node --bind-to none --stdin all")
    assert (
        mpirun_command("mpirun", "openmpi", 1, ["--allow-run-as-root"], is_root=True).count("--allow-run-as-root") == 1
    )
    assert "--allow-run-as-root" not in mpirun_command("mpirun", "openmpi", 3, [])


def test_hosts_in_either_familys_words() -> None:
    hosts = (Host("a", 2), Host("b", 1))
    assert mpirun_command("m", "openmpi", 2, [], hosts=hosts)[1:3] == ["--host", "a,b"]
    command = mpirun_command("m", "mpich", 2, ["-f", "F"], hosts=hosts)
    assert command[1:] == ["-f", "F", "-hosts", "a,b", "-n", "2", "-ppn", "1"]


@pytest.mark.parametrize(
    ("args", "family", "found"),
    [
        ("--hostfile F -x V", "openmpi", ("F", "")),
        ("-machinefile F", "openmpi", ("F", "")),
        ("--host a:2,b", "openmpi", ("", "a:2,b")),
        ("-H a", "openmpi", ("", "a")),
        ("-f F -hosts a,b", "mpich", ("F", "a,b")),
        ("-x V", "openmpi", ("", "")),
    ],
)
def test_hosts_that_the_user_names_to_mpirun(args: str, family: str, found: tuple[str, str]) -> None:
    asked = [take_option(args.split(), names[family])[0] for names in (HOSTFILES, HOSTS)]
    assert tuple(asked) == found


def test_what_mpirun_has_no_word_for() -> None:
    with pytest.raises(UsageError, match="mpirun takes no user's name"):
        check_hosts([Host("me@a")])
    with pytest.raises(UsageError, match="are for --launcher ssh"):
        check_hosts([Host("a", directory="/x")])


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("root@b: Permission denied (publickey). / ORTE was unable", "ssh-copy-id HOST"),
        ("There are not enough slots available in the system", "slots=N"),
        ("mpirun: Error: unknown option", ""),
    ],
)
def test_what_follows_from_its_words(said: str, found: str) -> None:
    assert found in advice(said)
    assert bool(found) == bool(advice(said))


def test_a_host_that_is_named_replaces_those_of_the_users_arguments() -> None:
    args = ["--mca", "x", "y", "--host", "a,b", "-H=c", "--hostfile", "F"]
    assert take_option(args, HOSTS["openmpi"]) == ("c", ["--mca", "x", "y", "--hostfile", "F"])
    assert take_option(["-hosts", "a,b", "-f", "F"], HOSTS["mpich"]) == ("a,b", ["-f", "F"])
