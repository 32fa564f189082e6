"""Slurmd: a real Slurm on the bed, slurmctld and munged here and one slurmd on each node.

Its files are below the bed's directory; nothing of a Slurm that this machine may have is touched.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Sequence

from support.hosts.namespaces import Bed
from support.waits import eventually

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged", "setpriv")
PORT = 6818
"""Of the daemons on nodes, which have networks of their own."""
KILL_WAIT = 5
"""Seconds from a job's SIGTERM to its SIGKILL."""
_CONF = """
ClusterName=bed
SlurmctldHost={head_name}({head})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={s}/munge.socket
CredType=cred/munge
SlurmctldPort={port}
SlurmdPort={node_port}
StateSaveLocation={s}/state
SlurmdSpoolDir={s}/spool-%n
SlurmctldPidFile={s}/slurmctld.pid
SlurmdPidFile={s}/slurmd-%n.pid
SlurmctldLogFile={s}/slurmctld.log
SlurmdLogFile={s}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,sched_min_interval=0
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait={kill_wait}
MinJobAge=300
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""


class Slurm:
    """The daemons."""

    def __init__(self, bed: Bed):
        self._bed = bed
        self._directory = bed.directory / "slurm"
        self.conf = self._directory / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def up(self) -> None:
        """Raises OSError with the log's end of the daemon that did not come up."""
        d = self._directory
        (d / "state").mkdir(parents=True)
        d.chmod(0o755)
        self.conf.write_text(self._configuration())
        self._munge()
        head = ["sh", "-c", 'hostname "$0"; exec "$@"', self._bed.head_name]
        self._start(["unshare", "--uts", *self._bed.command([*head, "slurmctld", "-D", "-c", "-f", str(self.conf)])])
        for node in self._bed.nodes:
            (d / f"spool-{node.name}").mkdir()
            self._start(node.command(["slurmd", "-D", "-f", str(self.conf)]))
        if not eventually(lambda: self.states() == {n.name: "idle" for n in self._bed.nodes}, 40):
            logs = {p.name: p.read_text()[-2000:] for p in d.glob("*.log")}
            raise OSError(f"Slurm's nodes did not come up: {self.states()}; {logs}")

    def _munge(self) -> None:
        d = self._directory
        key = d / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = {"key-file": key, "socket": d / "munge.socket", "pid-file": d / "munge.pid", "seed-file": d / "seed"}
        self._start(
            ["munged", "-F", "--force", "--log-file", f"{d}/munge.log", *(f"--{k}={v}" for k, v in files.items())]
        )
        if not eventually((d / "munge.socket").exists, 20):
            raise OSError(f"munged did not come up: {(d / 'munged.out').read_text()}")

    def _configuration(self) -> str:
        with socket.socket() as s:
            s.bind((self._bed.head, 0))
            port = s.getsockname()[1]
        places = {"s": self._directory, "head": self._bed.head, "head_name": self._bed.head_name}
        text = _CONF.format(**places, port=port, node_port=PORT, kill_wait=KILL_WAIT)
        for node in self._bed.nodes:
            text += f"NodeName={node.name} NodeAddr={node.address} NodeHostname={node.name} CPUs=4 RealMemory=4000\n"
        names = ",".join(n.name for n in self._bed.nodes)
        return f"{text}PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP\n"

    def _start(self, command: Sequence[str]) -> None:
        """A daemon in the foreground, which ends with this process."""
        with open(self._directory / "daemons.log", "ab") as log:
            env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": str(self.conf)}
            self._daemons.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    start_new_session=True,
                )
            )

    # ------------------------------------------------------------ what a user and an administrator do

    def call(self, *words: str, text: str = "") -> str:
        """What one of Slurm's programs prints, with nothing of a job around it. Raises OSError with its complaint."""
        env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(self.conf)}
        done = subprocess.run(words, input=text, env=env, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def states(self) -> dict[str, str]:
        """Of the nodes, by name; empty while slurmctld does not answer."""
        try:
            lines = self.call("sinfo", "-h", "-N", "-o", "%N %t").splitlines()
        except OSError:
            return {}
        return dict(line.split() for line in lines)

    def jobs(self) -> list[str]:
        """Those that wait, run or are being ended: number, name and state of each."""
        return self.call("squeue", "-h", "-o", "%A %j %T").splitlines()

    def allocate(self, nnodes: int, *more: str) -> str:
        """The number of a job that holds nodes, as salloc's is."""
        self.call("salloc", "--no-shell", f"--nodes={nnodes}", "--job-name=a-users-own", *more)
        return next(j.split()[0] for j in reversed(self.jobs()) if "a-users-own" in j)

    def release(self) -> None:
        """Cancel all jobs and wait until nodes are free; a node that was set down is back."""
        self.call("scancel", "--user=root")
        down = [name for name, state in self.states().items() if state.startswith(("down", "drain"))]
        for name in down:
            self.call("scontrol", "update", f"NodeName={name}", "State=RESUME")
        assert eventually(lambda: not self.jobs(), 40), self.jobs()
        assert eventually(lambda: set(self.states().values()) == {"idle"}, 40), self.states()

    def down(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(30)
