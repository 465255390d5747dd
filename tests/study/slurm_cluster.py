"""A real Slurm on this machine, for the tests: a controller and two nodes, all under one folder."""

import os
import shutil
import signal
import socket
import subprocess
import textwrap
import time
from pathlib import Path

PROGRAMS = [
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "scontrol",
    "squeue",
    "sinfo",
    "scancel",
]


def why_not() -> str | None:
    """Return what is missing for a cluster; None if nothing is."""
    missing = ", ".join(name for name in PROGRAMS if _find(name) is None)
    return f"not installed: {missing} (apt-get install slurm-wlm munge)" if missing else None


def _find(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Cluster:
    """A cluster that `start` starts and `stop` stops; `environment` is for its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self.environment = dict(os.environ) | {"SLURM_CONF": str(self.config)}
        self._processes: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        for name in ("run", "log", "state", "spool-n1", "spool-n2"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        for name in ("run", "log"):
            (self.folder / name).chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.config.write_text(self._configuration())
        run = self.folder / "run"
        log = self.folder / "log"
        files = {"socket": "munge.socket", "pid-file": "munged.pid", "seed-file": "munged.seed"}
        places = [f"--{option}={run}/{name}" for option, name in files.items()]
        self._start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--log-file={log}/munged.log",
            *places,
        )
        _wait_for(lambda: (run / "munge.socket").exists(), "munged", 10)
        self._start("slurmctld", "-D", "-f", str(self.config))
        for node in ("n1", "n2"):
            self.start_node(node)
        _wait_for(
            lambda: self.call("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"],
            "two idle nodes",
            30,
        )

    def start_node(self, node: str) -> None:
        self._start("slurmd", "-D", "-f", str(self.config), "-N", node, label=node)

    def kill_node(self, node: str) -> None:
        """Kill the slurmd of a node; the tasks that it started live on."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def call(self, *command: str) -> str:
        """Return the output of a Slurm command; empty if it failed."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=300
        )
        return done.stdout

    def stop(self) -> None:
        self.call("scancel", "--user", str(os.getuid()))
        for process in reversed(list(self._processes.values())):
            process.kill()
            process.wait()
        self._processes.clear()
        self._end_orphans()

    def _end_orphans(self) -> None:
        """Kill what a lost node had started, which has this cluster in its environment."""
        mark = f"SLURM_CONF={self.config}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if int(process.name) != os.getpid() and mark in (
                    process / "environ"
                ).read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue  # gone, or another user's

    def _start(self, name: str, *arguments: str, label: str = "") -> None:
        path = _find(name)
        assert path is not None
        out = (self.folder / "log" / f"{label or name}.out").open("ab")
        self._processes[label or name] = subprocess.Popen(
            [path, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        out.close()

    def _configuration(self) -> str:
        host = socket.gethostname().partition(".")[0]
        user = subprocess.run(
            ["id", "-un"], capture_output=True, text=True, check=True
        ).stdout.strip()
        controller, one, two = _free_ports(3)
        D = self.folder
        return textwrap.dedent(f"""\
            ClusterName=emergo
            SlurmctldHost={host}(127.0.0.1)
            SlurmUser={user}
            SlurmdUser={user}
            SlurmctldPort={controller}
            SlurmctldPidFile={D}/run/slurmctld.pid
            SlurmdPidFile={D}/run/slurmd-%n.pid
            SlurmctldLogFile={D}/log/slurmctld.log
            SlurmdLogFile={D}/log/slurmd-%n.log
            StateSaveLocation={D}/state
            SlurmdSpoolDir={D}/spool-%n
            AuthType=auth/munge
            AuthInfo=socket={D}/run/munge.socket,cred_expire=5
            CredType=cred/munge
            ProctrackType=proctrack/linuxproc
            TaskPlugin=task/none
            JobAcctGatherType=jobacct_gather/none
            AccountingStorageType=accounting_storage/none
            SelectType=select/cons_tres
            SelectTypeParameters=CR_CPU
            MpiDefault=none
            SwitchType=switch/none
            ReturnToService=2
            JobRequeue=1
            PreemptType=preempt/partition_prio
            PreemptMode=REQUEUE
            SlurmctldParameters=preempt_send_user_signal
            SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
            KillWait=1
            SlurmdTimeout=5
            MinJobAge=600
            NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=2 RealMemory=4000
            NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=2 RealMemory=4000
            PartitionName=low Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1
            PartitionName=high Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
            """)


def _wait_for(condition, what: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"no {what} after {seconds:g} s")
        time.sleep(0.1)
