"""From the file of a gateway to its parts: the service, batch systems, the job manager and its book."""

import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pilotage.cli import batch_systems, told_file
from pilotage.fabric.batch.idealizer import Idealized
from pilotage.fabric.gateway import configuration
from pilotage.fabric.gateway.advertising import Advertising
from pilotage.fabric.gateway.configuration import InvalidGateway, Told
from pilotage.fabric.gateway.delivering import Delivering
from pilotage.fabric.gateway.gateway import Gateway
from pilotage.fabric.gateway.kept_token import KeptToken
from pilotage.fabric.gateway.leases import Leases
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.gateway.pulling import Gate, Pulling
from pilotage.fabric.gateway.requests import Requests
from pilotage.fabric.gateway.service import GatewayService
from pilotage.fabric.manager import handlers
from pilotage.fabric.manager.book import Book
from pilotage.fabric.manager.handlers import Handler
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.manager.station import Farm, Station
from pilotage.fabric.pilot import authorities, credentials, renewal
from pilotage.fabric.pilot.renewal import Renewal
from pilotage.fabric.pilot.transport import Transport
from requirements.problem import Problem
from requirements.suggestion import did_you_mean


def read(file: Path) -> Told:
    """What the file of a gateway says.

    Raises:
        InvalidGateway: It cannot be read as what it should be; with every problem.
    """
    return configuration.read(told_file.parsed(file, InvalidGateway), str(file))


@contextmanager
def opened(told: Told, file: Path) -> Iterator[Gateway]:
    """The gateway that a file describes; its book and connections are closed with the block.

    Raises:
        InvalidGateway: A handler, the token, or an authority is not as it should be.
        StateUnusable: Its directory cannot be used, or another gateway does.
    """
    known = _handlers(told, file)
    with ExitStack() as stack:
        book = Book(told.directory)
        stack.callback(book.close)
        kept = KeptToken(file=told.directory / "token")
        token = kept.later_of(told_file.token(told.token_file, InvalidGateway))
        service = GatewayService(Transport(told.url, token, context=_tls(told, file)), kept.write)
        permits = Permits()
        station = Station(
            farms={name: _farm(told, name, stack) for name in told.systems},
            outlets={each.queue: each.outlet() for each in told.queues},
            handlers=known,
            sandboxes=service,
            limits={name: each.limits() for name, each in told.job_types.items()},
            may_gather=permits.may_gather,
        )
        manager = Manager(station=station, habits=told.habits(), book=book)
        life = renewal.life_left(credentials.claims(token), time.time())
        stack.enter_context(Renewal(service, life=life).going_on())
        yield _gateway(told, service, manager, permits, tuple(sorted(known)))


def _gateway(
    told: Told, service: GatewayService, manager: Manager, permits: Permits, job_types: tuple[str, ...]
) -> Gateway:
    leases = Leases(service=service, manager=manager)
    return Gateway(
        manager=manager,
        permits=permits,
        leases=leases,
        advertising=Advertising(service=service, manager=manager, permits=permits, scopes=told.scopes()),
        pulling=Pulling(
            service=service,
            manager=manager,
            permits=permits,
            requests=Requests(told.directory / "requests.json"),
            gates=[Gate(outlet=each.outlet(), most=each.max_grid_jobs, vos=told.vos) for each in told.queues],
            job_types=job_types,
        ),
        delivering=Delivering(service=service, manager=manager, leases=leases, permits=permits),
    )


def _farm(told: Told, name: str, stack: ExitStack) -> Farm:
    described = told.systems[name]
    return Farm(
        system=Idealized(system=batch_systems.system(described, stack), evidence=told.evidence()),
        shell=batch_systems.shell(described, stack),
        directory=str(described.directory),
    )


def _handlers(told: Told, file: Path) -> Mapping[str, Handler]:
    """All handlers that are installed.

    Raises:
        InvalidGateway: One cannot be used, or is missing for a job type of the file.
    """
    try:
        known = handlers.registered()
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


def _tls(told: Told, file: Path) -> ssl.SSLContext:
    try:
        return authorities.context(told.authorities)
    except ValueError as error:
        raise InvalidGateway([Problem(path="authorities", message=str(error), file=str(file))]) from None
