"""Leader election among the processes of an agent, and the loop that runs an agent's cycles.

The leader has a lease row with a fencing number.

The lease is renewed by a thread while its holder works, however long that takes. Every transaction of the
leader checks the fencing number, so a process that lost the lease while it was suspended commits nothing.

The loop runs one cycle after the other at the agent's interval; an agent without cycles is overdue.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Event
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from taskqueue.db import agent_leases, database
from taskqueue.db import clock as clocks
from taskqueue.errors import StorageAway

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Value = TypeVar("_Value")

#: Lifetime of a leadership that is not renewed; a killed agent is replaced after this time.
LEASE_TIME: Final = timedelta(seconds=30)
#: Seconds between two renewals.
_RENEWAL: Final = 10.0


class LeadershipLostError(Exception):
    """Another process became leader while this one was suspended; the transaction is rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The exclusive right to do an agent's work."""

    engine: Engine
    name: str
    fence: int
    now: datetime
    last: datetime | None  #: start of the latest completed cycle
    broken: set[str] = field(default_factory=set)  #: VOs whose work failed in this cycle
    unfinished: list[object] = field(default_factory=list)  #: steps whose rest is left to the next cycle

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that cannot overlap one of another leader."""
        with database.writing(self.engine) as conn:
            if not agent_leases.is_held(conn, name=self.name, fence=self.fence):
                raise self._lost()
            yield conn

    def _lost(self) -> LeadershipLostError:
        return LeadershipLostError(f"another process is the leader of {self.name} now")

    def repeat(self, step: Callable[[Connection], int], *, most: int, rounds: int) -> int:
        """Call `step`, each time in its own transaction, until it does fewer than `most` things.

        `step` returns how many things it did, and this method their sum. After `rounds` calls the rest is
        left to the next cycle.
        """
        total = 0
        for _ in range(rounds):
            with self.writing() as conn:
                done = step(conn)
            total += done
            if done < most:
                break
        else:
            self.unfinished.append(step)
        return total

    def serve_each(self, vos: Iterable[str], serve: Callable[[str], _Result]) -> dict[str, _Result]:
        """Serve VOs one after the other; a VO whose work fails is logged and missing from the result.

        Errors that are not the VO's end all: a lost leadership, an unavailable database, a conflict of
        transactions. A statement that takes too long is the VO's: it may have very many rows.
        """
        served: dict[str, _Result] = {}
        for vo in vos:
            with self.isolating(f"the work for the VO {vo} failed, the other VOs are continued", vo):
                served[vo] = serve(vo)
        return served

    @contextmanager
    def isolating(self, message: str, *vos: str) -> Iterator[None]:
        """Log the failure of the block with a message, except the errors that end all (`serve_each`)."""
        try:
            yield
        except Exception as error:
            if _ends_all(error):
                raise
            self.broken.update(vos)
            log.exception("%s: %s", self.name, message)

    def serve_together(
        self, vos: Mapping[str, _Value], serve: Callable[[Mapping[str, _Value]], object]
    ) -> Sequence[str]:
        """Serve all VOs at once, or each alone as by `serve_each` if that fails; those whose work failed."""
        try:
            serve(vos)
        except Exception as error:
            if _ends_all(error):
                raise
            log.warning(
                "%s: the work for all VOs together failed, each is served alone: %s", self.name, error
            )
            served = self.serve_each(vos, lambda vo: serve({vo: vos[vo]}))
            return [vo for vo in vos if vo not in served]
        return []

    def renew(self, now: datetime) -> None:
        """Extend the lease if it is still held. A failure is left to the next renewal, and to the fence."""
        try:
            with database.writing(self.engine) as conn:
                agent_leases.renew(conn, name=self.name, fence=self.fence, until=now + LEASE_TIME)
        except SQLAlchemyError as error:
            log.info("%s: the lease could not be renewed: %s", self.name, type(error).__name__)

    def give_back(self) -> None:
        """End the lease, so that another process gets it at once."""
        self.renew(self.now - LEASE_TIME - timedelta(seconds=1))

    def finish(self) -> None:
        """Store that the cycle is complete, and whose work failed."""
        # Not in `writing`: to lock the lease for reading before it is changed could be a deadlock.
        with database.writing(self.engine) as conn:
            is_held = agent_leases.finish_cycle(
                conn, name=self.name, fence=self.fence, broken=sorted(self.broken), now=self.now
            )
        if not is_held:
            raise self._lost()


def _ends_all(error: Exception) -> bool:
    """Whether the work for other VOs would fail as well."""
    is_away = isinstance(error, database.UNAVAILABLE) and not database.is_statement_timeout(error)
    return isinstance(error, LeadershipLostError) or is_away or database.is_conflict(error)


def acquire(engine: Engine, name: str, *, holder: str, now: datetime) -> Leadership | None:
    """Become leader or renew the leadership; None while another process is the leader.

    `holder` is a name that is unique to this process, `now` the time of the database.
    """
    with database.writing(engine) as conn:
        fence = agent_leases.acquire(conn, name=name, holder=holder, now=now, ttl=LEASE_TIME)
        last = agent_leases.list_last_cycles(conn).get(name)
    return None if fence is None else Leadership(engine=engine, name=name, fence=fence, now=now, last=last)


@contextmanager
def lead(
    engine: Engine, name: str, *, holder: str, now: datetime, renewal: float = _RENEWAL, briefly: bool = False
) -> Iterator[Leadership | None]:
    """Be the leader during one cycle, as by `acquire`; the lease is renewed every `renewal` seconds.

    The end of the cycle is stored unless it raises. `briefly`: the lease is given back then. Otherwise the
    process keeps it, for its next cycle.
    """
    leadership = acquire(engine, name, holder=holder, now=now)
    if leadership is None:
        yield None
        return
    with _keep_renewed(leadership, renewal):
        yield leadership
        leadership.finish()
    if briefly:
        leadership.give_back()


@contextmanager
def _keep_renewed(leadership: Leadership, seconds: float) -> Iterator[None]:
    """Renew the lease in a thread. A suspended process renews nothing, and so loses its lease."""
    started, stop = time.monotonic(), threading.Event()

    def renew() -> None:
        while not stop.wait(seconds):
            # By the database's clock at the start, not by that of this host: others compare with it.
            leadership.renew(leadership.now + timedelta(seconds=time.monotonic() - started))

    thread = threading.Thread(target=renew, name=f"{leadership.name} lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


Clock = Callable[[], datetime]


def run(
    cycle: Callable[[datetime], object],
    *,
    name: str,
    every: float,
    first_pause: float | None = None,
    stop: Event,
    woken: Event | None = None,
    clock: Clock = clocks.utc_now,
) -> None:
    """Call `cycle` until `stop` is set, `every` so many seconds after the end of the last; log true results.

    The second cycle follows after `first_pause`: loops that begin together need not go on together.

    A cycle whose result `is_behind` is followed by the next one at once. `woken` starts the next cycle
    immediately; it is to be set together with `stop` as well.
    """
    woken = woken or stop
    pause = every if first_pause is None else first_pause
    while not stop.is_set():
        result = _run_once(cycle, name=name, clock=clock)
        if getattr(result, "is_behind", False):
            woken.wait(0)
        else:
            woken.wait(pause)
            pause = every
        if woken is not stop:
            woken.clear()


_FAILED: Final = object()


def run_once(cycle: Callable[[datetime], object], *, name: str, clock: Clock = clocks.utc_now) -> bool:
    """Run one cycle and return whether it was completed; an error is logged, and ends only this cycle."""
    return _run_once(cycle, name=name, clock=clock) is not _FAILED


def _run_once(cycle: Callable[[datetime], object], *, name: str, clock: Clock) -> object:
    """The result of a cycle, or `_FAILED`."""
    try:
        result = database.run_with_retry(lambda: cycle(clock()))
    except database.CommitsLost:
        return _FAILED
    except database.UNAVAILABLE as error:
        log.warning("%s: the database is unavailable, retrying in the next cycle: %s", name, error)
        return _FAILED
    except (StorageAway, OSError) as error:  # such as a full disk
        log.warning("%s: %s", name, error)
        return _FAILED
    except LeadershipLostError as lost:
        log.warning("%s: the cycle was ended: %s", name, lost)
        return _FAILED
    except Exception:
        log.exception("%s: the cycle failed", name)
        return _FAILED
    if result:
        log.info("%s: %s", name, result)
    return result


#: Seconds between two cycles of the agents of the program; plug-ins have further ones. Changes of the
#: configuration reach the pools, lost jobs their next pilot, and new task queues their weight within seconds.
INTERVALS: Mapping[str, float] = {
    "pools": 0.5,
    "lost-jobs": 1.0,
    "priorities": 1.0,
    "sweep": 1.0,
    "dependencies": 1.0,
    "reverts": 5.0,
    "waits": 5.0,
    "accounting": 5.0,
    "depths": 60.0,
    "day-record": 60.0,
    "forecasts": 60.0,
    "scope-counters": 30.0,
    "retention": 600.0,
}
#: An agent is overdue if its latest cycle began longer ago than this and than three intervals.
_TOLERANCE = timedelta(minutes=1)


def list_overdue(
    latest: Mapping[str, datetime | None], intervals: Mapping[str, float], *, now: datetime
) -> list[str]:
    """List the agents that no process seems to run; `latest` is the start of each one's latest cycle."""
    return [name for name, every in intervals.items() if _is_overdue(latest.get(name), every, now)]


def _is_overdue(began: datetime | None, every: float, now: datetime) -> bool:
    return began is None or now - began > max(_TOLERANCE, timedelta(seconds=3 * every))
