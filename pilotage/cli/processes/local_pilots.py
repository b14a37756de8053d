"""Local pilots: processes on this machine that run jobs for the queues of one site.

A pilot is started for a VO and a queue if the matcher has a job for them. Their jobs run as the user of the
service, who can read its keys: they are isolated from these.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlsplit

from sqlalchemy import make_url

import pilotage
from cs_config.tree.address import QueueAddress
from matcher import demand
from matcher.request import match_request
from matcher.request.match_request import MatchCaller
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Settings
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.errors import HostTrouble
from pilotage.fabric.pilot.node import facts
from pilotage.fabric.pilot.payload import isolation
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot
from pilotage.service.services import Services
from requirements.errors import PilotageError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LocalQueue:
    """A queue with the VO that a pilot would serve there."""

    vo: str
    address: QueueAddress


def list_queues_with_work(parts: Services, site: str) -> list[LocalQueue]:
    """The queues of a site, each with a VO, for which jobs wait now."""
    config = parts.live.current
    usable = [
        LocalQueue(vo=vo, address=address)
        for address in config.addresses
        if address.site == site
        for vo in sorted(config.vos)
        if config.usable(address, vo)
    ]
    return [post for post in usable if _has_work(parts, post)]


def _has_work(parts: Services, post: LocalQueue) -> bool:
    """Match with the offer that a pilot would send; a rejected request counts as no work."""
    address = post.address
    place = QueuePlace(site=address.site, ce=address.ce, queue=address.queue)
    values = {
        name: list(each.value) if isinstance(each.value, tuple) else each.value
        for name, each in parts.live.current.parameters(address, post.vo).items()
    }
    offered = offer.make_offer(place, Slot(), JobFilters(), values, facts.measure_facts())
    caller = MatchCaller(subject="pilotage up", vos=frozenset({post.vo}), queue=address)
    try:
        request = match_request.read_resource(offered.at(0))
        return bool(demand.get_matching_task_queues(parts.matcher, request, caller))
    except PilotageError as error:
        log.warning("no local pilots for the VO %s at %s: %s", post.vo, address, error)
        return False


#: Seconds between two checks for work.
_EVERY = 1.0
#: After a pilot that ended sooner than this, in seconds, the next one for its queue is delayed …
_HASTY = 3.0
#: … by this many seconds if it succeeded …
_PAUSE = 3.0
#: … or this many if it failed.
_PENALTY = 30.0
#: Seconds that pilots have at shutdown to return their jobs.
_GRACE = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    post: LocalQueue
    process: subprocess.Popen[bytes]
    directory: Path
    since: float


class LocalPilots:
    """Runs as many pilots as there is work for, up to a maximum."""

    def __init__(
        self,
        *,
        most: int,
        wanted: Callable[[], Sequence[LocalQueue]],
        environment: Callable[[LocalQueue, str], Mapping[str, str]],
        directory: Path,
        words: Sequence[str] = (),
    ) -> None:
        """Prepare the thread; `start` starts it.

        Args:
            most: Maximum number of pilots at a time.
            wanted: Lists the queues that have waiting jobs now.
            environment: Variables of a pilot, with service and token, given its queue and stamp.
            directory: Parent of the working directories.
            words: Further arguments of each pilot.
        """
        self._most = most
        self._wanted = wanted
        self._environment = environment
        self._directory = directory
        self._words = words
        self._running: list[_Running] = []
        self._not_before: dict[LocalQueue, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="local-pilots", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop all pilots; each returns its job."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for each in self._running:
            each.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        for each in self._running:
            _end(each.process, deadline - time.monotonic())
        self._reap()

    def look(self) -> None:
        """Remove ended pilots, and start new ones for queues with work."""
        self._reap()
        if len(self._running) >= self._most:
            return
        now = time.monotonic()
        posts = [post for post in self._wanted() if self._not_before.get(post, 0.0) <= now]
        # The one with the fewest pilots first, so that every queue with work gets one.
        while posts and len(self._running) < self._most:
            post = min(posts, key=lambda each: (self._count(each), each))
            self._launch(post)

    def _count(self, post: LocalQueue) -> int:
        return sum(each.post == post for each in self._running)

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            try:
                self.look()
            except Exception:
                log.exception("the check of local pilots failed")

    def _launch(self, post: LocalQueue) -> None:
        stamp = token_hex(8)
        directory = self._directory / stamp
        directory.mkdir(mode=0o700, parents=True)
        place = post.address
        command = [
            *(sys.executable, "-m", "pilotage.cli", "pilot"),
            *("--site", place.site, "--ce", place.ce, "--queue", place.queue),
            *("--max-empty", "1"),  # an idle pilot makes room for one that is needed
            *self._words,
        ]
        with (directory / "pilot.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **self._environment(post, stamp)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C must not reach the pilots: `stop` terminates them
            )
        self._running.append(
            _Running(post=post, process=process, directory=directory, since=time.monotonic())
        )

    def _reap(self) -> None:
        ended = [each for each in self._running if each.process.poll() is not None]
        self._running = [each for each in self._running if each.process.poll() is None]
        for each in ended:
            failed = each.process.returncode != 0
            if failed:
                log.warning("a local pilot ended with status %d: %s", each.process.returncode, each.directory)
            else:
                shutil.rmtree(each.directory, ignore_errors=True)
            now = time.monotonic()
            if now - each.since < _HASTY:
                self._not_before[each.post] = now + (_PENALTY if failed else _PAUSE)


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    try:
        process.wait(max(patience, 0.1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


#: Suffixes of the files of an SQLite database.
_BESIDE = ("", "-wal", "-shm", "-journal")
#: Directories of the default sockets of PostgreSQL, where it trusts connections of our account.
_POSTGRESQL = ("/run/postgresql", "/var/run/postgresql")


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
    yield from (chosen.home, chosen.blobs, chosen.key, *chosen.foreign_secrets, *_program())
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
