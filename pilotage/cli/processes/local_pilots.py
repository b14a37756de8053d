"""Local pilots: a director of one site in the process of `pilotage up`, whose pilots run on this host.

Their jobs run as the user of the service, who can read its keys: they are isolated from these.
"""

import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import make_url

import pilotage
from pilotage.cli.errors import CommandRefused
from pilotage.cli.processes import director, site_process
from pilotage.cli.settings import Settings
from pilotage.client.api import ServiceClient
from pilotage.fabric.batch import local_host
from pilotage.fabric.batch.batch_system import BatchJob, Capacity, Handle, JobResources, ReliableSystem
from pilotage.fabric.batch.local_host import LocalHost
from pilotage.fabric.cycle_summaries import DirectorSummary
from pilotage.fabric.director import targets
from pilotage.fabric.director.director import Director
from pilotage.fabric.director.recorded_pilots import Status
from pilotage.fabric.director.targets import DirectorOptions, DirectorTargets, QueueTarget
from pilotage.fabric.pilot.errors import HostTrouble
from pilotage.fabric.pilot.payload import isolation
from pilotage.service.auth import callers
from pilotage.service.services import Services
from taskqueue.db import database
from taskqueue.jobs import log as job_log
from taskqueue.sites.processes import FORGOTTEN

log = logging.getLogger(__name__)

#: Name of the director, and of its batch system.
NAME = "local"
#: Seconds between two looks for a change; a cycle without one is due after the longest pause.
_EVERY, _LONGEST_PAUSE = 1.0, 10.0
#: Seconds until a report is missed: more than the longest pause.
_REPORTED_EVERY = 60.0
#: Seconds without pilots after failed ones.
_PAUSE, _MOST_PAUSE = 30.0, 300.0
#: Seconds that pilots have at shutdown to return their jobs.
GRACE = 20.0
#: Seconds for which a director's tokens are good: each day it gets others.
_TOKEN_LIFE = 2 * 86_400.0


class PilotHost(LocalHost):
    """This host with a number of places for pilots, whatever the queues are said to have."""

    def submit(self, job: BatchJob) -> str:
        """Start a pilot as soon as a place is free."""
        return super().submit(replace(job, resources=JobResources()))

    def capacity(self) -> Mapping[str, Capacity]:
        """Nothing: places are not cores."""
        return {}

    def end_all(self) -> None:
        """End all pilots; each returns its job."""
        stamps = self.survey((), targets.stamp_prefix(NAME)).stamps
        handles = [Handle(stamp=stamp) for stamp in stamps]
        self.kill(handles)
        deadline = time.monotonic() + self.grace + _EVERY
        while self.survey(handles, targets.stamp_prefix(NAME)).stamps and time.monotonic() < deadline:
            threading.Event().wait(0.1)


@dataclass(slots=True, kw_only=True)
class LocalPilots:
    """A director of one site whose pilots run on this host, in a thread.

    A cycle is due when the configuration or a job has changed, and while pilots or jobs are there.
    """

    parts: Services
    site: str
    url: str
    host: PilotHost
    authorities: Path | None = None
    words: Sequence[str] = ()  #: further arguments of each pilot
    clock: Callable[[], float] = time.monotonic  #: seconds
    _director: Director | None = None
    _clients: ExitStack = field(default_factory=ExitStack)
    _served: tuple[object, ...] = ()  #: the day, VOs and queues of the director
    _seen: tuple[int, int] = (0, 0)  #: version of the configuration and end of the job log at the last cycle
    _due_at: float = 0.0
    _problems: frozenset[str] = frozenset()  #: of the last cycle, which are logged
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="local-pilots", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop all pilots; each returns its job."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._close_director()
        self.host.end_all()

    def look(self) -> DirectorSummary | None:
        """Run a cycle if one is due."""
        with database.reading(self.parts.engine) as conn:
            now = self.parts.live.current.version, job_log.read_end(conn).log_id
        if now == self._seen and self.clock() < self._due_at:
            return None
        self._seen = now
        self._follow_configuration()
        if self._director is None:
            summary = DirectorSummary(at=self.parts.clock())
        else:
            summary = self._director.cycle(self.parts.clock())
        is_busy = summary.jobs or summary.waiting or summary.running or summary.submitted
        self._due_at = self.clock() + (_EVERY if is_busy else _LONGEST_PAUSE)
        self._log(summary)
        return summary

    def end_pilots_of_former_address(self) -> None:
        """End pilots that a killed process has left, if this one listens elsewhere: they would not find it.

        They would hold their places as long as they try to report.
        """
        noted = Path(self.host.directory, "url")
        if noted.exists() and noted.read_text(encoding="utf-8") != self.url:
            self.host.end_all()
        noted.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        noted.write_text(self.url, encoding="utf-8")

    def _run(self) -> None:
        site_process.isolate_errors("the end of former local pilots", self.end_pilots_of_former_address)
        while not self._stop.wait(_EVERY):
            site_process.isolate_errors("the cycle of local pilots", self.look)

    def _follow_configuration(self) -> None:
        """Open another director each day and for other VOs or queues; it finds the pilots of the former."""
        config = self.parts.live.current
        queues = [each for each in config.addresses if each.site == self.site]
        vos = [vo for vo in sorted(config.vos) if any(config.usable(each, vo) for each in queues)]
        served = self.parts.clock().date(), tuple(vos), tuple(queues)
        if served == self._served:
            return
        self._close_director()
        self._served = served
        if vos:
            self._director = self._open_director(vos, [str(each) for each in queues])

    def _open_director(self, vos: Collection[str], queues: Collection[str]) -> Director:
        system = ReliableSystem(name=NAME, system=self.host)
        return Director(
            sites=DirectorTargets(
                queues={
                    each: QueueTarget(queue=each, system=NAME, batch_queue=local_host.QUEUE)
                    for each in queues
                },
                systems={NAME: system},
                options=DirectorOptions(name=NAME, pause=_PAUSE, longest_pause=_MOST_PAUSE),
                script=director.pilot_script(self.words, url=self.url, pythons=(sys.executable,)),
                service=self.url,
                places=self.host.cores,
            ),
            clients={vo: self._open_client(vo) for vo in vos},
            every=_REPORTED_EVERY,
        )

    def _open_client(self, vo: str) -> ServiceClient:
        grant = callers.grant(role="director", vo=vo, site=self.site, ttl=_TOKEN_LIFE)
        token, _ = self.parts.tokens.mint(grant, now=self.parts.clock())
        client = ServiceClient(self.url, token, authorities=self.authorities, proxy="none")
        return self._clients.enter_context(client)

    def _close_director(self) -> None:
        if self._director is not None:
            self._director.expected = FORGOTTEN.total_seconds()  # it is missed by nobody until then
            self._director.end()
        self._clients.close()
        self._director, self._served = None, ()

    def _log(self, summary: DirectorSummary) -> None:
        """Log problems that the last cycle did not have, and pilots that failed."""
        problems = frozenset((*summary.away, *summary.list_problems()))
        problems |= {f"no pilots of {each} for a while: the last ones failed" for each in summary.paused}
        for problem in sorted(problems - self._problems):
            log.warning("local pilots: %s", problem)
        self._problems = problems
        if failed := summary.ended[Status.FAILED] + summary.ended[Status.ABORTED]:
            log.warning("failed local pilots: %d; see `pilotage pilots list --status Failed,Aborted`", failed)


#: Suffixes of the files of an SQLite database.
_BESIDE = ("", "-wal", "-shm", "-journal")
#: Directories of the default sockets of PostgreSQL, where it trusts connections of our account.
_POSTGRESQL = ("/run/postgresql", "/var/run/postgresql")


def pilot_words(chosen: Settings) -> tuple[str, ...]:
    """Arguments of each pilot."""
    trusted = () if chosen.authorities is None else (f"--ca={chosen.authorities.absolute()}",)
    # An idle pilot makes room for one that is needed.
    return ("--max-empty=1", *trusted, *isolation_words(chosen))


def isolation_words(chosen: Settings) -> tuple[str, ...]:
    """Arguments of a pilot that hide the installation from its jobs."""
    if chosen.isolation == isolation.NONE:
        return ("--isolation", isolation.NONE)
    hidden = (word for path in _own(chosen) for word in ("--hide", str(path)))
    return ("--isolation", chosen.isolation, *hidden)


def check_isolation(chosen: Settings) -> None:
    """Test the isolation of local pilots."""
    try:
        kind = isolation.choose_isolation(
            chosen.isolation,
            command=None,
            image=None,
            hidden=isolation.private_paths(os.environ, *_own(chosen)),
            own=os.environ,
        )
        isolation.find_working(kind, below=Path(tempfile.gettempdir()), own=os.environ)
    except (ValueError, HostTrouble) as error:
        raise CommandRefused(
            f"--site {chosen.site}: jobs of local pilots run as you, and cannot be kept from the keys and "
            f"tokens in {chosen.home}: {error}; where you trust everybody who submits jobs, "
            "add --isolation none"
        ) from None


def _own(chosen: Settings) -> Iterator[Path]:
    """Files, directories and sockets of the installation."""
    yield from (chosen.home, chosen.key, *chosen.foreign_secrets, *_program())
    yield from (place for place in (chosen.blobs, chosen.other_blobs) if isinstance(place, Path))
    if chosen.resources is not None:  # it defines permissions
        yield chosen.resources
    for url in sorted({chosen.database_url, chosen.direct_url}):
        yield from _database_paths(url)
    redis = urlsplit(chosen.redis_url or "")
    if redis.scheme == "unix":
        yield Path(redis.path)


def _program() -> Iterator[Path]:
    """Directories of the program: a job that could change them would run code in the next local pilot."""
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix)
    source = Path(pilotage.__file__).absolute().parents[1]
    if not source.is_relative_to(sys.base_prefix):
        yield source


def _database_paths(url: str) -> Iterator[Path]:
    database = make_url(url)
    if database.get_backend_name() == "sqlite":
        if database.database:
            yield from (Path(f"{database.database}{end}").absolute() for end in _BESIDE)
        return
    hosts = database.query.get("host") or database.host
    for host in (hosts,) if isinstance(hosts, str) else hosts or _POSTGRESQL:
        yield from (Path(each) for each in host.split(",") if each.startswith("/"))
