from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from examples.servers.slurm import Slurm as Cluster
from pilotage.fabric.batch import htcondor
from pilotage.fabric.batch.dialect import dialect
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.htcondor import HTCondor
from pilotage.fabric.batch.local_host import QUEUE, LocalHost
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.node_script import PYTHONS
from pilotage.plugins.batch_check.conformance import CHECKS, Bench
from pilotage.plugins.batch_check.fault_injection import FaultyShell
from tests.support.fakes.batch_commands import commands
from tests.support.servers import torque
from tests.support.servers.grid_engine import GridEngine as Cell
from tests.support.servers.htcondor import HTCondorPool


def _local_host(directory: Path, _: pytest.FixtureRequest) -> Bench:
    # However slow the host is, a job that is ended has the time to say goodbye.
    return Bench(system=LocalHost(directory=str(directory), cores=4, memory=4000, grace=300), queue=QUEUE)


def _slurm(directory: Path, request: pytest.FixtureRequest) -> Bench:
    cluster: Cluster = request.getfixturevalue("slurm")
    shell = FaultyShell(shell=LocalShell(environment=cluster.environment))
    areas = WorkAreas(directory=str(directory), shell=shell)
    return Bench(
        system=DialectSystem(areas=areas, dialect=dialect.shipped_dialect("slurm")),
        queue="short",
        faults=shell,
    )


def _pbs(directory: Path, request: pytest.FixtureRequest) -> Bench:
    cluster: Cluster = request.getfixturevalue("slurm")
    environment = torque.environment(cluster, directory.parent / "bin")
    shell = FaultyShell(shell=LocalShell(environment=environment))
    areas = WorkAreas(directory=str(directory), shell=shell)
    system = DialectSystem(areas=areas, dialect=dialect.shipped_dialect("pbs"))
    return Bench(system=system, queue="short", faults=shell)


def _lsf(directory: Path, _: pytest.FixtureRequest) -> Bench:
    environment = commands.environment("lsf.py", commands.LSF, directory.parent / "lsf")
    shell = FaultyShell(shell=LocalShell(environment=environment))
    areas = WorkAreas(directory=str(directory), shell=shell)
    system = DialectSystem(areas=areas, dialect=dialect.shipped_dialect("lsf"))
    return Bench(system=system, queue="normal", faults=shell, poll=0.05)


def _htcondor(directory: Path, request: pytest.FixtureRequest) -> Bench:
    pool: HTCondorPool = request.getfixturevalue("htcondor_pool")
    shell = FaultyShell(shell=pool.shell)
    areas = WorkAreas(directory=f"{pool.shell.home}/{directory.parent.name}", shell=shell)
    return Bench(system=HTCondor(areas=areas, pythons=PYTHONS), queue="htcondor", faults=shell, many=100)


def _htcondor_ce(directory: Path, request: pytest.FixtureRequest) -> Bench:
    pool: HTCondorPool = request.getfixturevalue("htcondor_pool")
    schedd = pool.schedd
    shell = FaultyShell(shell=LocalShell(environment=htcondor.login_variables(schedd)))
    system = HTCondor(areas=WorkAreas(directory=str(directory), shell=shell), schedd=schedd)
    return Bench(system=system, queue="short", faults=shell, many=100, knows_queues=False, gentle=False)


def _grid_engine(directory: Path, request: pytest.FixtureRequest) -> Bench:
    cell: Cell = request.getfixturevalue("grid_engine")
    shell = FaultyShell(shell=cell.shell)
    areas = WorkAreas(directory=f"{cell.shell.home}/{directory.parent.name}", shell=shell)
    system = DialectSystem(areas=areas, dialect=dialect.shipped_dialect("gridengine"))
    return Bench(system=system, queue="short", faults=shell)


@pytest.fixture(
    params=[
        _local_host,
        _lsf,
        pytest.param(_htcondor, marks=pytest.mark.debian("htcondor")),
        pytest.param(_htcondor_ce, marks=pytest.mark.debian("htcondor")),
        pytest.param(_slurm, marks=pytest.mark.debian("slurm")),
        pytest.param(_pbs, marks=pytest.mark.debian("torque")),
        pytest.param(_grid_engine, marks=pytest.mark.debian("gridengine")),
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with closing(request.param(tmp_path / "jobs", request)) as bench:
        bench.patience = 300
        yield bench


@pytest.mark.parametrize("check", CHECKS)
def test_a_batch_system_does_what_it_must(bench: Bench, check: str) -> None:
    CHECKS[check](bench)
