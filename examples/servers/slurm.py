"""A private Slurm: Debian's programs, three nodes on this host, nothing of the machine's own.

It wants root: its daemons run jobs for others. They listen on 127.0.0.1 only.
"""

import os
import secrets
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from examples.servers.debian import PATH, Suite, without_startup_files
from examples.servers.starting import free_port, wait_until

SUITE = Suite(
    about="the batch system Slurm",
    programs=("slurmctld", "slurmd", "munged", "sbatch", "unshare", "mount"),
    packages=("slurm-wlm", "munge", "util-linux", "mount"),
    needs_root=True,
)
#: Features, cores and MB of each node.
NODES = {
    "n1": ("intel,el8,si00_400", 4, 8000),
    "n2": ("amd,el9,si00_900", 4, 16000),
    "n3": ("amd,el9,avx512,si00_1200", 8, 32000),
}
#: GPUs of nodes, by kind, and MB of their local disks; nodes have no real ones, Slurm only counts them.
GPUS = {"n2": "a100", "n3": "l40s"}
DISKS = {"n1": 10_000, "n2": 20_000, "n3": 100_000}
#: Bytes of a path that a unix socket may have.
_LONGEST_SOCKET = 107
#: Times that it is looked for what still runs when all is to end.
_ROUNDS = 30
_CONFIGURATION = """\
ClusterName=pilotage
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=256
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=2
# So that a machine that stands still for a while fails no command, no launch and no last report of a job.
KillWait=120
MinJobAge=3600
InactiveLimit=0
ReturnToService=2
SlurmdTimeout=300
MessageTimeout=10
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=short Nodes=n1,n2 Default=YES MaxTime=10 State=UP
PartitionName=long Nodes=n2,n3 MaxTime=2880 State=UP
"""


class Slurm:
    """One cluster whose files lie in `directory`; `environment` is for its commands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {"SLURM_CONF": str(directory / "slurm.conf")}

    def start(self) -> None:
        """Bring it up; it takes a few seconds.

        Raises:
            ValueError: The path of the directory is too long: no job would start.
        """
        self._check_path()
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (self.directory / name).mkdir()
        self._start_munge()
        (self.directory / "slurm.conf").write_text(self._configuration())
        self._make_gpus()
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.wait_until_up()

    def _make_gpus(self) -> None:
        """Two files for each kind, which Slurm takes for devices."""
        lines = []
        for node, kind in GPUS.items():
            for number in range(2):
                (self.directory / f"{kind}-{number}").touch()
            files = f"{self.directory}/{kind}-[0-1]"
            lines.append(f"NodeName={node} Name=gpu Type={kind} File={files}\n")
        (self.directory / "gres.conf").write_text("".join(lines))

    def _check_path(self) -> None:
        """Each job has a socket in the spool of its node; where its path is longer, the job ends at once."""
        socket_of_job = self.directory / "spool.n1" / "n1_9999.4294967291"
        if (over := len(os.fsencode(socket_of_job)) - _LONGEST_SOCKET) > 0:
            raise ValueError(f"{self.directory}: {over} bytes too long for Slurm's sockets; shorten TMPDIR")

    def start_controller(self) -> None:
        """Start the daemon that decides, anew."""
        self._run("slurmctld")

    def end_jobs(self) -> None:
        """End all jobs, and return when all cores are free again.

        They are cancelled again and again, since one that is being started may miss it. On a busy machine the
        controller may have to give up a node first (`SlurmdTimeout`).
        """

        def are_over() -> bool:
            with suppress(RuntimeError):  # a busy controller does not answer in time
                self.ask("scancel", "--me")
                return not self.ask("squeue", "--noheader")
            return False

        wait_until(are_over, 700)

    def forget_jobs(self) -> None:
        """Start the controller anew without its records of jobs; it may give their numbers to others."""
        self.kill_controller()
        for file in (self.directory / "state").glob("job_state*"):
            file.unlink()
        self.start_controller()
        self.wait_until_up()

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._run(*without_startup_files(["slurmd", "-N", node]))

    def kill_controller(self) -> None:
        """As a power cut would; what it had not written to its state is forgotten."""
        self._kill("slurmctld")

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node; its jobs run on, and Slurm takes it for down at once."""
        self._kill(f"slurmd.{node}")
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed")

    def _kill(self, daemon: str) -> None:
        process = psutil.Process(int((self.directory / f"{daemon}.pid").read_text()))
        process.kill()
        # It is nobody's child any more; what remains of it may stay for a while.
        wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)

    def wait_until_up(self) -> None:
        """Return as soon as all nodes take jobs."""
        wait_until(self._is_up)

    def stop(self) -> None:
        """End all daemons and what they run."""
        for find in (self._daemons, self._job_processes):  # without daemons no new job comes
            for _ in range(_ROUNDS):  # but what is being ended may still start something
                if not (found := list(filter(_is_alive, find()))):
                    break
                for process in found:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                psutil.wait_procs(found, timeout=1)

    def _daemons(self) -> list[psutil.Process]:
        """The daemons with what they have started and not let go."""
        found = []
        for file in self.directory.glob("*.pid"):
            with suppress(ValueError, psutil.NoSuchProcess):
                process = psutil.Process(int(file.read_text()))
                found += [process, *process.children(recursive=True)]
        return found

    def _job_processes(self) -> list[psutil.Process]:
        """What runs in jobs of this cluster, with the processes of Slurm that watch it: nobody's children."""
        found = []
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get("SLURM_CONF") == self.environment["SLURM_CONF"]:
                with suppress(psutil.NoSuchProcess):
                    found += [process, *process.children(recursive=True)]
                    found += [each for each in process.parents() if each.name() == "slurmstepd"]
        return found

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands answers.

        Raises:
            RuntimeError: It failed; with what it said.
        """
        return self._run(*command).stdout

    def _start_munge(self) -> None:
        key = self.directory / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        directory = self.directory
        self._run(
            *("munged", "--force", "--num-threads=2", f"--socket={directory}/munge.socket"),
            *(f"--key-file={key}", f"--pid-file={directory}/munged.pid"),
            *(f"--log-file={directory}/munged.log", f"--seed-file={directory}/munge.seed"),
        )

    def _configuration(self) -> str:
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()}"
            f" CPUs={cores} RealMemory={memory} TmpDisk={DISKS[name]} Features={features}"
            + (f" Gres=gpu:{GPUS[name]}:2" if name in GPUS else "")
            for name, (features, cores, memory) in NODES.items()
        )
        return _CONFIGURATION.format(host=host, port=free_port(), directory=self.directory, nodes=nodes)

    def _is_up(self) -> bool:
        try:
            said = self.ask("sinfo", "--noheader", "--Node", "--format=%T").split()
        except RuntimeError:
            return False
        return bool(said) and set(said) <= {"idle", "mixed", "allocated", "completing"}

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment, "PATH": PATH},
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr}")
        return done


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
