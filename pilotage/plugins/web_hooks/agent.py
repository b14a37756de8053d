"""Web-hook agent: collects what the hooks of VOs report, and sends it."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from agents.leader import Leadership
from cs_config.tree.configuration import Configuration
from matcher.limits import throttle_standings
from pilotage.cli.processes.agent import AgentContext
from pilotage.cli.settings import Settings
from pilotage.plugins.web_hooks import messages, stored_hooks
from pilotage.plugins.web_hooks.mail import MailSender
from pilotage.plugins.web_hooks.messages import TRY_SECONDS, Send, SendResult
from pilotage.plugins.web_hooks.sender import HookSender
from pilotage.plugins.web_hooks.settings import HookSettings
from pilotage.plugins.web_hooks.stored_hooks import Delivery, Event, WebHook
from requirements.errors import format_count
from taskqueue.accounting import log_reader
from taskqueue.db import database
from taskqueue.jobs import log as job_log
from taskqueue.jobs import unmatchable
from taskqueue.sites import scopes

log = logging.getLogger(__name__)

NAME: Final = "web-hooks"
#: Log rows per transaction, and transactions per cycle.
_MOST: Final = 10_000
_ROUNDS: Final = 50
#: Time between two looks at pools and throttles.
_LOOK: Final = timedelta(minutes=1)
#: Hooks that are served at the same time, and of one VO; messages of one hook in one cycle, and seconds for
#: them; a try that has begun may take `TRY_SECONDS` more.
_THREADS: Final = 8
_THREADS_OF_VO: Final = 2
_MESSAGES: Final = 20
_SECONDS: Final = 10.0
#: Seconds of a cycle after which no other hook is begun: the next cycle sees new events.
_BEGIN_SECONDS: Final = 30.0
#: Seconds of a cycle until it ends without the results that are still missing; their messages are sent again.
_WAIT_SECONDS: Final = _BEGIN_SECONDS + _SECONDS + TRY_SECONDS + 10.0


_Result = list[tuple[Delivery, SendResult]]


@dataclass(slots=True)
class WebHooksState:
    """When pools and throttles were last looked at; None in a new process."""

    looked_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHooksResult:
    """Numbers of messages that were delivered, and of tries that failed."""

    delivered: int = 0
    failed: int = 0

    def __bool__(self) -> bool:
        return bool(self.delivered or self.failed)


def cycle(
    engine: Engine, config: Configuration, *, now: datetime, holder: str, memory: WebHooksState, send: Send
) -> WebHooksResult | None:
    """Collect what happened since the last cycle, and send it; None while another process is the leader.

    `memory` is the same object in each cycle of a process.
    """
    begun = time.monotonic()
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        _read_log(leadership)
        if memory.looked_at is None or not timedelta() <= now - memory.looked_at < _LOOK:
            _look(leadership, config)
            memory.looked_at = now
        return _send(leadership, send, lambda: now + timedelta(seconds=time.monotonic() - begun))


def collect(engine: Engine, *, now: datetime, holder: str) -> None:
    """Read the log without sending: rows that are not read yet are not deleted."""
    with leader.lead(engine, NAME, holder=holder, now=now, briefly=True) as leadership:
        if leadership is not None:
            _read_log(leadership)


def _read_log(leadership: Leadership) -> None:
    with database.reading(leadership.engine) as conn:
        end = job_log.read_end(conn)
    with leadership.writing() as conn:
        log_reader.note_end(conn, stored_hooks.READER_NAME, end)
    leadership.repeat(partial(_read_span, now=leadership.now), most=_MOST, rounds=_ROUNDS)


def _read_span(conn: Connection, now: datetime) -> int:
    if stored_hooks.is_end_of_jobs_wanted(conn):
        span = log_reader.read_next_span(conn, stored_hooks.READER_NAME, now=now, lag=timedelta(), most=_MOST)
    else:
        span = log_reader.find_noted_span(conn, stored_hooks.READER_NAME)
    if span is None:
        return 0
    log_reader.advance(conn, stored_hooks.READER_NAME, span)
    stored_hooks.add_ended_jobs(conn, span, now=now)
    return span.rows


def _look(leadership: Leadership, config: Configuration) -> None:
    """Add messages about pools and throttles of the VOs that have hooks for them."""
    with database.reading(leadership.engine) as conn:
        hooks = stored_hooks.list_hooks(conn)
    wanted: defaultdict[str, set[Event]] = defaultdict(set)
    for hook in hooks:
        wanted[hook.vo] |= _STATES.keys() & set(hook.events)
    with leadership.writing() as conn:
        stored_hooks.forget_conditions(
            conn, {(vo, event) for vo, events in wanted.items() for event in events}
        )
    leadership.serve_each(wanted, lambda vo: _look_at_vo(leadership, config, vo, wanted[vo]))


def _look_at_vo(
    leadership: Leadership,
    config: Configuration,
    vo: str,
    events: set[Event],
) -> None:
    for event in sorted(events):
        with database.reading(leadership.engine) as conn:
            holding = _STATES[event](conn, config, vo, leadership.now)
        with leadership.writing() as conn:
            # Read again: one may have been removed meanwhile.
            hooks = [hook for hook in stored_hooks.list_hooks(conn, frozenset({vo})) if event in hook.events]
            stored_hooks.add_conditions(conn, hooks, event, holding, now=leadership.now)


def _pools_without_queue(conn: Connection, _config: Configuration, vo: str, _now: datetime) -> dict[str, str]:
    pools = unmatchable.list_stuck_pools(conn, {vo})
    return dict.fromkeys(pools, "no queue is eligible for jobs that wait")


def _closed_throttles(conn: Connection, config: Configuration, vo: str, now: datetime) -> dict[str, str]:
    places = (scopes.list_enclosing(str(each)) for each in config.addresses if config.usable(each, vo))
    names = sorted(config.throttles.keys() & frozenset().union(*places))
    standings = throttle_standings.iterate_standings(conn, config, names, now)
    return {name: room.why or "" for name, each in standings if (room := each.room()).jobs == 0}


#: Subjects for which a state holds now, with the reason.
_STATES: Final[Mapping[Event, Callable[[Connection, Configuration, str, datetime], dict[str, str]]]] = {
    Event.POOL_WITHOUT_QUEUE: _pools_without_queue,
    Event.SITE_THROTTLED: _closed_throttles,
}


def _send(leadership: Leadership, send: Send, clock: Callable[[], datetime]) -> WebHooksResult:
    """Send what is due, several hooks at a time; a slow receiver delays no other one for long."""
    with database.reading(leadership.engine) as conn:
        due = stored_hooks.list_due(conn, most=_MESSAGES, now=leadership.now)
    counts = Counter[bool]()
    for hook, results in _serve(due, lambda hook, pending: _send_to(hook, pending, send, clock)):
        with leadership.writing() as conn:
            counts += _record(conn, hook, results, now=leadership.now)
    return WebHooksResult(delivered=counts[True], failed=counts[False])


def _serve(
    due: Sequence[tuple[WebHook, list[Delivery]]], serve: Callable[[WebHook, list[Delivery]], _Result]
) -> Iterator[tuple[WebHook, _Result]]:
    """Serve hooks in threads: some of each VO at a time, those that work and have waited longest first."""
    left = sorted(due, key=lambda each: (each[0].failures > 0, each[1][0].created_at))
    running: dict[Future[_Result], WebHook] = {}
    begun = time.monotonic()
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=NAME)
    try:
        while True:
            if time.monotonic() < begun + _BEGIN_SECONDS:
                for each in _choose(left, [hook.vo for hook in running.values()]):
                    left.remove(each)
                    running[threads.submit(serve, *each)] = each[0]
            if not running:
                return
            seconds = max(0.0, begun + _WAIT_SECONDS - time.monotonic())
            done, _ = wait(running, timeout=seconds, return_when=FIRST_COMPLETED)
            if not done:
                log.error("%s: no longer waiting for %s", NAME, format_count(len(running), "hook"))
                return
            for future in done:
                yield running.pop(future), future.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _choose(
    left: Sequence[tuple[WebHook, list[Delivery]]], vos: Sequence[str]
) -> list[tuple[WebHook, list[Delivery]]]:
    """The hooks to begin beside those of `vos` that are served now."""
    chosen, of_vos = [], Counter(vos)
    for hook, pending in left:
        if of_vos.total() < _THREADS and of_vos[hook.vo] < _THREADS_OF_VO:
            of_vos[hook.vo] += 1
            chosen.append((hook, pending))
    return chosen


def _record(conn: Connection, hook: WebHook, results: _Result, *, now: datetime) -> Counter[bool]:
    """Store the results of the messages of a hook; how many were delivered, and not."""
    for delivery, result in results:
        stored_hooks.record_try(
            conn, hook, delivery, answer=result.answer, is_delivered=result.is_delivered, now=now
        )
        if result.is_delivered:
            hook = replace(hook, failures=0)
    return Counter(result.is_delivered for _, result in results)


def _send_to(
    hook: WebHook, pending: Sequence[Delivery], send: Send, clock: Callable[[], datetime]
) -> _Result:
    """Send the messages of one hook in order, up to the first that fails."""
    begun, done = time.monotonic(), _Result()
    for delivery in pending:
        result = _try(hook, delivery, send, clock())
        done.append((delivery, result))
        if not result.is_delivered or time.monotonic() >= begun + _SECONDS:
            break
    return done


def _try(hook: WebHook, delivery: Delivery, send: Send, now: datetime) -> SendResult:
    """Send one message. An unforeseen error is of this hook only: others are not sent again for it."""
    try:
        body = delivery.body.encode()
        return send(hook.url, body, messages.sign(hook.secret, delivery.delivery_id, body, now=now))
    except Exception as error:
        log.exception("%s: delivery %d of hook %d failed", NAME, delivery.delivery_id, hook.hook_id)
        return SendResult(answer=type(error).__name__, is_delivered=False)


@contextmanager
def open_agent(
    context: AgentContext, chosen: Settings
) -> Iterator[Callable[[datetime], WebHooksResult | None]]:
    """The cycle of the agent, as the operator allows it to send."""
    own = chosen.of(HookSettings)
    sender = HookSender(
        allowed=own.web_hook_networks,
        refused=own.web_hook_refused_networks,
        mail=MailSender(own.mail_server, own.mail_from),
    )
    memory = WebHooksState()
    yield lambda now: cycle(
        *(context.engine, context.current()),
        now=now,
        holder=context.holder,
        memory=memory,
        send=sender.send,
    )
