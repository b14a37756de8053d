"""From the file of a gateway to its parts: the service, batch systems, the job manager and its book.

`pilotage gateway`: grid jobs from the service, materialised as local jobs in a site's batch systems.
"""

import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import options, output, process_setup, settings
from pilotage.cli.processes import batch, site_file
from pilotage.fabric.batch.reliable import ReliableSystem
from pilotage.fabric.gateway import configuration
from pilotage.fabric.gateway.advertising import GatewayAdvertising
from pilotage.fabric.gateway.configuration import GatewayFile, InvalidGateway
from pilotage.fabric.gateway.delivery import OutputDelivery
from pilotage.fabric.gateway.gateway import Gateway
from pilotage.fabric.gateway.leases import GatewayLeases
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.gateway.pulling import GridJobPulling, PullQueue, RequestNames
from pilotage.fabric.gateway.service import GatewayService, KeptToken
from pilotage.fabric.manager import handlers
from pilotage.fabric.manager.context import ManagerContext, SharedBatchSystem
from pilotage.fabric.manager.errors import StateUnusable
from pilotage.fabric.manager.handlers import Handler
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.service import credentials, transport
from pilotage.fabric.pilot.service.credentials import TokenRenewal
from pilotage.fabric.pilot.service.heartbeat import PeriodicThread
from pilotage.fabric.pilot.service.transport import Away, Transport
from requirements.errors import Problem, did_you_mean


def read_gateway_file(file: Path) -> GatewayFile:
    """What the file of a gateway says.

    Raises:
        InvalidGateway: It cannot be read as what it should be; with every problem.
    """
    return configuration.read_file(site_file.parse_file(file, InvalidGateway), str(file))


@contextmanager
def open_gateway(told: GatewayFile, file: Path) -> Iterator[Gateway]:
    """The gateway that a file describes; its book and connections are closed with the block.

    Raises:
        InvalidGateway: A handler, the token, or an authority is not as it should be.
        StateUnusable: Its directory cannot be used, or another gateway does.
    """
    known = _handlers(told, file)
    with ExitStack() as stack:
        book = Journal(told.directory)
        stack.callback(book.close)
        kept = KeptToken(file=told.directory / "token")
        token = kept.later_of(site_file.read_token(told.token_file, InvalidGateway))
        service = GatewayService(Transport(told.url, token, context=_tls(told, file)), kept.write)
        permits = Permits()
        station = ManagerContext(
            farms={name: _open_batch_system(told, name, stack) for name in told.systems},
            outlets={each.queue: each.outlet() for each in told.queues},
            handlers=known,
            sandboxes=service,
            limits={name: each.limits() for name, each in told.job_types.items()},
            may_gather=permits.may_gather,
        )
        manager = Manager(station=station, habits=told.habits(), book=book)
        life = credentials.life_left(credentials.read_claims(token), time.time())
        stack.enter_context(TokenRenewal(service, life=life).going_on())
        yield _build_gateway(told, service, manager, permits, tuple(sorted(known)))


def _build_gateway(
    told: GatewayFile, service: GatewayService, manager: Manager, permits: Permits, job_types: tuple[str, ...]
) -> Gateway:
    leases = GatewayLeases(service=service, manager=manager)
    return Gateway(
        manager=manager,
        permits=permits,
        leases=leases,
        advertising=GatewayAdvertising(
            service=service, manager=manager, permits=permits, scopes=told.scopes()
        ),
        pulling=GridJobPulling(
            service=service,
            manager=manager,
            permits=permits,
            requests=RequestNames(told.directory / "requests.json"),
            gates=[
                PullQueue(outlet=each.outlet(), most=each.max_grid_jobs, vos=told.vos) for each in told.queues
            ],
            job_types=job_types,
        ),
        delivering=OutputDelivery(service=service, manager=manager, leases=leases, permits=permits),
    )


def _open_batch_system(told: GatewayFile, name: str, stack: ExitStack) -> SharedBatchSystem:
    described = told.systems[name]
    return SharedBatchSystem(
        system=ReliableSystem(system=batch.open_system(described, stack), evidence=told.evidence()),
        shell=batch.open_shell(described, stack),
        directory=str(described.directory),
    )


def _handlers(told: GatewayFile, file: Path) -> Mapping[str, Handler]:
    """All handlers that are installed.

    Raises:
        InvalidGateway: One cannot be used, or is missing for a job type of the file.
    """
    try:
        known = handlers.installed_handlers()
    except (TypeError, ImportError) as error:
        raise InvalidGateway([Problem(path=handlers.GROUP, message=str(error))]) from None
    missing = [
        Problem(
            path=f"job_types/{name}",
            message=f"has no handler, only {', '.join(sorted(known))} have",
            suggestion=did_you_mean(name, sorted(known)),
            file=str(file),
        )
        for name in told.job_types
        if name not in known
    ]
    if not known:  # who asks for no type in particular gets all of them
        missing = [Problem(path=handlers.GROUP, message="no handler is installed: install the program anew")]
    if missing:
        raise InvalidGateway(missing)
    return known


def _tls(told: GatewayFile, file: Path) -> ssl.SSLContext:
    try:
        return transport.tls_context(told.authorities)
    except ValueError as error:
        raise InvalidGateway([Problem(path="authorities", message=str(error), file=str(file))]) from None


log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gateway")(gateway)


def gateway(
    *,
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="The service, batch systems, queues, job types.")
    ],
    once: Annotated[bool, typer.Option("--once", help="One round, tell what it did, and end.")] = False,
    log_level: options.LogLevel = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Take grid jobs for the queues of a site and run each as many local jobs in its batch system.

    Tells of each round in a line. May be killed at any time; started again it goes on where it was.
    """
    chosen = settings.load({"home": home, "log_level": log_level})
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    told = read_gateway_file(config)
    with open_gateway(told, config) as made:
        batch.warn_of_readable([told.token_file, told.directory], told.systems)
        if once:
            _once(made, as_json=as_json)
        else:
            _run(made, told, as_json=as_json)


def _once(made: Gateway, *, as_json: bool) -> None:
    summary = made.talk(datetime.now(UTC))
    made.work()
    try:
        made.deliver()
    except Away as error:
        summary.away.append(str(error))
    output.report_cycle(summary, as_json=as_json)


def _run(made: Gateway, told: GatewayFile, *, as_json: bool) -> None:
    stop = process_setup.stop_on_signals()
    every = told.work_every
    with _repeat_in_thread("work", made.work, every), _repeat_in_thread("delivery", made.deliver, every):
        while not stop.is_set():
            _isolate_errors(
                "talk", lambda: output.report_cycle(made.talk(datetime.now(UTC)), as_json=as_json)
            )
            stop.wait(min(told.every, made.leases.heartbeat_seconds or told.every))


def _repeat_in_thread(name: str, step: Callable[[], object], every: float) -> PeriodicThread:
    """Does a step in a thread of its own, again and again."""

    def turn() -> float:
        _isolate_errors(name, step)
        return every

    return PeriodicThread(turn, name=name)


def _isolate_errors(name: str, step: Callable[[], object]) -> None:
    """Whatever goes wrong, the next round goes on."""
    try:
        step()
    except Away as error:
        log.warning("%s: the service is away: %s", name, error)
    except StateUnusable as error:
        log.error("%s: the round was cut off: %s", name, error)  # noqa: TRY400 - the directory's fault
    except Exception:
        log.exception("%s: the round broke", name)
