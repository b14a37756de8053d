"""`pilotage gateway`: fetches grid jobs and runs them as local jobs in the batch systems of a site.

Builds the parts of a gateway from its file: the service, batch systems, the job manager and its journal.
"""

import logging
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from pilotage.cli import options, output, settings
from pilotage.cli.errors import CommandRefused, WrongUsage
from pilotage.cli.output import LOCAL_JOBS, Column, Entry
from pilotage.cli.processes import site_process
from pilotage.cli.processes.token_file import TokenFile
from pilotage.cli.settings import Settings
from pilotage.fabric.batch.batch_system import CarriesFiles, ReliableSystem
from pilotage.fabric.batch.settings import Connections, list_private_paths, open_system
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.cycle_summaries import GatewaySummary, Presence
from pilotage.fabric.director import system_check, targets
from pilotage.fabric.director.targets import QueueTarget
from pilotage.fabric.gateway import configuration
from pilotage.fabric.gateway.advertising import GatewayAdvertising
from pilotage.fabric.gateway.configuration import GatewayFile, InvalidGateway
from pilotage.fabric.gateway.gateway import Gateway
from pilotage.fabric.gateway.leases import GatewayLeases
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.gateway.pulling import GridJobPulling
from pilotage.fabric.gateway.service import GatewayService
from pilotage.fabric.manager import grid_job, job_types
from pilotage.fabric.manager import journal as journals
from pilotage.fabric.manager.context import ManagerContext
from pilotage.fabric.manager.grid_job import GridJob, job_type
from pilotage.fabric.manager.job_types import Handler
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.manager.shared_area import CarryingSystem, SharedBatchSystem
from pilotage.fabric.pilot.service import heartbeat
from pilotage.fabric.pilot.service import transport as service_transport
from pilotage.fabric.pilot.service.transport import Away, Refused, Transport
from pilotage.fabric.pilot.settings import QueuePlace
from requirements.errors import Problem, did_you_mean


def read_gateway_file(file: Path) -> GatewayFile:
    """The settings in the file of a gateway."""
    return configuration.read_file(settings.load_yaml(file, InvalidGateway), str(file))


@contextmanager
def open_gateway(described: GatewayFile, file: Path) -> Iterator[Gateway]:
    """The gateway described by a file; its journal and connections are closed at the end of the block."""
    known = _handlers(described, file)
    with ExitStack() as stack:
        journal = Journal(described.directory)
        stack.callback(journal.close)
        service = _open_service(described, file)
        permits = Permits()
        context = ManagerContext(
            options=described,
            journal=journal,
            systems={
                name: _open_batch_system(described, name, Connections(stack=stack))
                for name in described.systems
            },
            queues={each.queue: each.to_target() for each in described.queues},
            handlers=known,
            sandboxes=service,
            limits=described.job_types,
            may_gather=permits.may_gather,
            hidden=(
                described.directory,
                *list_private_paths([described.token_file], described.systems.values()),
            ),
        )
        manager = Manager(context)
        leases = GatewayLeases(service=service, manager=manager, permits=permits)
        yield Gateway(
            manager=manager,
            permits=permits,
            leases=leases,
            advertising=GatewayAdvertising(
                service=service,
                manager=manager,
                permits=permits,
                leases=leases,
                scopes=described.scopes(),
                job_types=tuple(sorted(known)),
            ),
            pulling=GridJobPulling(
                service=service,
                manager=manager,
                permits=permits,
                queues=described.queues,
                vos=described.vos,
                job_types=tuple(sorted(known)),
                languages={name: each.languages for name, each in described.systems.items()},
            ),
            presence=Presence(
                kind="gateway",
                name=f"{socket.gethostname()}:{described.directory}",
                sites=sorted({each.queue.partition("/")[0] for each in described.queues}),
                every=described.polling_time,
            ),
        )


def _open_service(described: GatewayFile, file: Path) -> GatewayService:
    tokens = TokenFile(file=described.token_file, kept=described.directory / "token", invalid=InvalidGateway)
    setting = "authorities"
    try:
        context = service_transport.tls_context(described.authorities)
        setting = "proxy"
        proxy = service_transport.choose_proxy(described.url, described.proxy, os.environ)
    except ValueError as error:
        raise InvalidGateway([Problem(path=setting, message=str(error), file=str(file))]) from None
    return GatewayService(Transport(described.url, tokens, context=context, proxy=proxy), tokens)


def _open_batch_system(described: GatewayFile, name: str, connections: Connections) -> SharedBatchSystem:
    one = described.systems[name]
    opened = open_system(one, connections)
    reliable = ReliableSystem(name=name, system=opened, evidence=described.lost_after)
    if one.job_directory is None and isinstance(opened, CarriesFiles):
        return CarryingSystem(
            system=reliable,
            shell=LocalShell(),
            directory=str(described.directory / "carried"),
            files=opened,
        )
    return SharedBatchSystem(system=reliable, shell=connections.shell(one), directory=str(one.job_directory))


def _handlers(described: GatewayFile, file: Path) -> Mapping[str, Handler]:
    try:
        known = job_types.installed_handlers()
    except (TypeError, ImportError) as error:
        raise InvalidGateway([Problem(path=job_types.GROUP, message=str(error))]) from None
    missing = [
        Problem(
            path=f"job_types/{name}",
            message=f"has no handler, only {', '.join(sorted(known))} have",
            suggestion=did_you_mean(name, sorted(known)),
            file=str(file),
        )
        for name in described.job_types
        if name not in known
    ]
    if not known:  # a request that names no type would get jobs of all types
        missing = [Problem(path=job_types.GROUP, message="no handler is installed: install the program anew")]
    if missing:
        raise InvalidGateway(missing)
    return known


log = logging.getLogger(__name__)

#: Seconds for a batch system to answer a check.
_CHECKED_WITHIN = 60.0


class GatewayAction(StrEnum):
    """Action of the command."""

    RUN = "run"
    STATUS = "status"


def show_status(described: GatewayFile, *, job_id: int | None, as_json: bool) -> None:
    """Print the grid jobs in the journal of a gateway, or the local jobs of one of them."""
    found = [
        grid_job.grid_job_status(entry, local_jobs)
        for entry, local_jobs in journals.read_grid_jobs(described.directory)
        if job_id in (None, entry.taken.job_id) and not entry.forgotten
    ]
    if job_id is not None and not found:
        raise WrongUsage(f"{described.directory}: grid job {job_id} is not in the journal")
    rows = [_describe(each) for each in found]
    if job_id is not None:
        local = [asdict(each) for each in found[-1].local_jobs]
        data = {**rows[-1], "jobs": local}
        output.emit(data, as_json=as_json, render=lambda: output.list_table(LOCAL_JOBS, local))
        return
    output.emit({"grid_jobs": rows}, as_json=as_json, render=lambda: output.list_table(_GRID_JOBS, rows))


def _describe(grid_job: GridJob) -> Entry:
    return {
        "job_id": grid_job.taken.job_id,
        "epoch": grid_job.taken.epoch,
        "queue": grid_job.taken.queue,
        "job_type": job_type(grid_job.taken.description),
        "phase": grid_job.phase.value,
        "local_status": grid_job.aggregate.value,
        "local_jobs": {state.value: number for state, number in sorted(grid_job.local.items()) if number},
        "progress": [str(each) for each in grid_job.progress],
        "problem": grid_job.problem,
    }


_GRID_JOBS: Mapping[str, Column] = {
    "#Job": "job_id",
    "Site/CE/Queue": "queue",
    "Type": "job_type",
    "Phase": "phase",
    "Local jobs": lambda each: ", ".join(f"{n} {state}" for state, n in each["local_jobs"].items()),
    "Progress": lambda each: "; ".join(each["progress"]),
    "Problem": "problem",
}


@settings.command_with("log_level")
def gateway(
    chosen: Settings,
    *,
    as_json: bool,
    config: Annotated[
        Path,
        options.option("FILE", "Gateway file: service, batch systems, queues and job types.", "--config"),
    ],
    action: Annotated[
        GatewayAction,
        typer.Argument(
            metavar="[status]", help="status: only show what its journal has.", show_default=False
        ),
    ] = GatewayAction.RUN,
    job: Annotated[
        int | None, options.option("ID", "With status: show the local jobs of this grid job.")
    ] = None,
    once: site_process.Once = False,
    check: site_process.Check = False,
) -> None:
    """Fetch grid jobs for the queues of a site and run each as several local jobs in its batch system.

    Prints one line for each cycle. It can be killed at any time: a new start continues from there.
    `pilotage gateway status --config FILE` shows its grid jobs, also while it runs and without the service.

    Example: `pilotage gateway --config gateway.yaml`.
    """
    described = read_gateway_file(config)
    if action is GatewayAction.STATUS:
        show_status(described, job_id=job, as_json=as_json)
        return
    if job is not None:
        raise WrongUsage("--job is for `pilotage gateway status`")
    process = GatewayProcess(described=described, file=config)
    site_process.run(process, chosen, once=once, check=check, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayProcess:
    """A gateway with its file."""

    described: GatewayFile
    file: Path

    def list_risks(self) -> Collection[str]:
        """That jobs can read the token or the journal."""
        secrets = [self.described.token_file, self.described.directory]
        return site_process.list_readable(secrets, self.described.systems)

    def check(self) -> Mapping[str, str]:
        """Check the queues and the batch systems; the journal may be in use by a process that works."""
        described = self.described
        _handlers(described, self.file)
        service = _open_service(described, self.file)
        found = [target for vo in described.vos for target in self._compare_queues(service, vo)]
        with ExitStack() as stack:
            systems = described.open_systems(Connections(stack=stack))
            return system_check.check_systems(systems, dict.fromkeys(found), seconds=_CHECKED_WITHIN)

    def run_once(self) -> GatewaySummary:
        """Run one cycle."""
        with open_gateway(self.described, self.file) as made:
            return made.run_once(datetime.now(UTC))

    def run(self, stop: Event, show: Callable[[GatewaySummary], None]) -> None:
        """Run cycles with the service, and beside them those of each batch system and of delivery."""
        every, polling_time = self.described.job_polling_time, self.described.polling_time
        with open_gateway(self.described, self.file) as made, ExitStack() as threads:
            threads.enter_context(_repeat_in_thread("delivery", made.leases.deliver, every, stop))
            for name in made.manager.systems:
                advance = partial(made.manager.advance_system, name)
                threads.enter_context(_repeat_in_thread(f"work {name}", advance, every, stop))
            while not stop.is_set():
                site_process.isolate_errors("the cycle", lambda: show(made.talk(datetime.now(UTC))))
                stop.wait(min(polling_time, made.leases.heartbeat_seconds or polling_time))

    def _compare_queues(self, service: GatewayService, vo: str) -> list[QueueTarget]:
        """The queues of the file; `InvalidGateway` names those that do not exist or have less than stated."""
        found, wrong = [each.to_target() for each in self.described.queues], []
        for number, target in enumerate(found):
            try:
                parameters = service.queue_parameters(QueuePlace(*target.queue.split("/")), vo)
                message = targets.find_contradictions(target, parameters)
            except Refused as error:
                message = f"{target.queue}: {error}"
            except Away as error:
                raise CommandRefused(f"{self.described.url}: {error}") from None
            if message:
                wrong.append(Problem(path=f"queues/{number}", message=message, file=str(self.file)))
        if wrong:
            raise InvalidGateway(wrong)
        return found


def _repeat_in_thread(
    name: str, step: Callable[[], object], every: float, stop: Event
) -> AbstractContextManager[None]:
    """Run a step periodically in its own thread; after `stop` not again, while others still end theirs."""

    def run_step() -> float | None:
        if stop.is_set():
            return None
        site_process.isolate_errors(name, step)
        return every

    return heartbeat.call_periodically(run_step, name=name)
