"""Signals and logs of long-running processes, and a supervisor of equal ones that restarts those that die."""

import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from typing import TypeVar

from pilotage.cli import errors
from pilotage.cli.errors import REFUSED, CommandRefused
from pilotage.fabric.pilot.node import linux
from pilotage.fabric.pilot.service import heartbeat

_Result = TypeVar("_Result")

#: Signals that end a process when its current work is finished.
_ENDINGS = (signal.SIGINT, signal.SIGTERM)


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C or SIGTERM sets, so that current work is finished first."""
    stop = threading.Event()
    for each in _ENDINGS:
        signal.signal(each, lambda *_: stop.set())
    return stop


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt the block as Ctrl-C does, so that it removes what it has made."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:  # `nohup`
            signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


#: Open files that a process of the service may need: one for each connection.
_FILES = 65_536


def raise_file_limit() -> None:
    """Allow this process, and those that it starts, as many open files as its hard limit does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def read_file_limit() -> int:
    """Open files that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES if soft == resource.RLIM_INFINITY else soft


def run_apart(work: Callable[[], int], *, patience: float) -> int:
    """Run work in a child process until it ends or a signal comes; its exit status.

    A thread in a frozen file system keeps its process, which no signal ends: after `patience` seconds this
    process ends without it, so that another one can be started. The child never outlives this process
    otherwise. Signals to end wait until this process handles them: none ends it before, with its status lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        linux.die_with_parent()
        status = REFUSED
        try:
            status = work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)  # without waiting for threads
    stop = stop_on_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while not stop.wait(_LOOK_EVERY):
        if (ended := _wait_for_end(child, 0)) is not None:
            return ended
    os.kill(child, signal.SIGTERM)
    if (ended := _wait_for_end(child, patience)) is not None:
        return ended
    os.kill(child, signal.SIGKILL)
    if _wait_for_end(child, 1) is None:
        _log.error("process %d hangs, probably in a frozen file system, and ends with it", child)
    return REFUSED


def _wait_for_end(child: int, seconds: float) -> int | None:
    """The exit status of a child that ends in time; None: it has not ended."""
    deadline = time.monotonic() + seconds
    while True:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else REFUSED
        if time.monotonic() >= deadline:
            return None
        threading.Event().wait(0.05)


#: Logger of requests, at the level `debug`.
_REQUESTS = "uvicorn.access"
#: Logger of the HTTP server, and its lines for malformed HTTP and for requests of another protocol.
_SERVER = "uvicorn.error"
_NO_HTTP = (
    "Invalid HTTP request received.",
    "Unsupported upgrade request.",
    "No supported WebSocket library",
)


class JsonLines(logging.Formatter):
    """Log lines as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logs(level: str, *, as_json: bool = False) -> None:
    """Send the log of this process to standard error, as text or JSON."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if as_json else text)
    handler.addFilter(shorten_errors)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger(_REQUESTS).addFilter(strip_query)
    logging.getLogger(_SERVER).addFilter(drop_invalid_requests)


def drop_invalid_requests(record: logging.LogRecord) -> bool:
    """Log filter that drops lines for malformed HTTP: they name no sender, and could fill the disk."""
    return not str(record.msg).startswith(_NO_HTTP)


def shorten_errors(record: logging.LogRecord) -> bool:
    """Log filter that reduces the error of a statement to one line: statements are long and hold values."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_shorten, record.args))
    return True


def _shorten(value: object) -> object:
    # Recognised by its attribute: site-side processes, which log here too, have no SQLAlchemy.
    cause = getattr(value, "orig", None) if isinstance(value, Exception) else None
    return value if cause is None else (str(cause).splitlines() or [type(cause).__name__])[0]


def strip_query(record: logging.LogRecord) -> bool:
    """Log filter that removes queries from lines of requests: they hold one-time links and codes."""
    if isinstance(record.args, tuple):
        record.args = tuple(each.partition("?")[0] if isinstance(each, str) else each for each in record.args)
    return True


_log = logging.getLogger(__name__)

#: Seconds after which a start counts as successful.
_PROVEN = 30.0
#: Seconds before the second restart after a failed start; doubled for each further one.
_FIRST_REST = 1.0
_LONGEST_REST = 60.0
_LOOK_EVERY = 0.5  # seconds


def keep_alive(target: Callable[[], None], count: int, *, ending: Callable[[], None] = lambda: None) -> None:
    """Run `count` processes until SIGINT or SIGTERM; one that dies is restarted.

    They are spawned, not forked: each makes its own engine and threads, and `target` must be picklable. They
    end with this process; `ending` is called before they are terminated.
    """
    context = multiprocessing.get_context("spawn")
    stop = stop_on_signals()

    def start() -> BaseProcess:
        process = context.Process(target=_run, args=(target,))
        process.start()
        return process

    places = [ProcessSlot(start, now=time.monotonic()) for _ in range(count)]
    try:
        while not stop.wait(_LOOK_EVERY):
            for place in places:
                place.look(now=time.monotonic())
    finally:
        ending()
        for place in places:
            place.child.terminate()
        for place in places:
            place.child.join()


@contextmanager
def keep_beside(target: Callable[[], None]) -> Iterator[None]:
    """Run `target`, which must be picklable, in a process of its own until the end of the block.

    One that dies is restarted; it ends with this process.
    """
    context = multiprocessing.get_context("spawn")

    def start() -> BaseProcess:
        process = context.Process(target=_run, args=(target,))
        process.start()
        return process

    place = ProcessSlot(start, now=time.monotonic(), must_start=False)

    def look() -> float:
        place.look(now=time.monotonic())
        return _LOOK_EVERY

    try:
        with heartbeat.call_periodically(look, name="beside", first=_LOOK_EVERY):
            yield
    finally:
        place.child.terminate()
        place.child.join()


@contextmanager
def compute_beside(work: Callable[[], _Result]) -> Iterator[Callable[[], _Result]]:
    """Do work in a child process during the block; yields what waits for its result, or raises its error.

    The child is forked and has all that this process has read, without a copy of it; an open connection must
    not be among it. It is interrupted as by Ctrl-C where the block ends before, and killed with this process.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_result, args=(work, sender))
    child.start()
    sender.close()

    def wait() -> _Result:
        try:
            error, result = receiver.recv()
        except EOFError:
            child.join()
            raise CommandRefused(f"a process of this command ended with status {child.exitcode}") from None
        if error is not None:
            raise error
        found: _Result = result
        return found

    try:
        yield wait
    finally:
        child.terminate()
        child.join()
        receiver.close()


def _send_result(work: Callable[[], object], sender: multiprocessing.connection.Connection) -> None:
    linux.die_with_parent()
    for each in (signal.SIGINT, signal.SIGHUP):  # they reach the whole group; the parent sends SIGTERM
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt, BrokenPipeError):  # the parent ends as well
        outcome: tuple[Exception | None, object]
        try:
            outcome = None, work()
        except Exception as error:  # noqa: BLE001 - raised again by the parent
            outcome = error, None
        sender.send(outcome)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the parent ends us as soon as it has it


class ProcessSlot:
    """One process and its restarts.

    Restarts after failed starts are delayed, longer each time. A failure of the very first start without a
    signal is an error of configuration, so it ends the command with a message.
    """

    def __init__(self, start: Callable[[], BaseProcess], *, now: float, must_start: bool = True) -> None:
        """Start the first process; times are monotonic, in seconds. `must_start` False: no error ends us."""
        self._start = start
        self._since = now
        self._until: float | None = None  # time of the restart; None: it runs
        self._is_first = must_start
        self._failed = 0  # in a row
        self.child = start()

    def look(self, *, now: float) -> None:
        """Restart the process if it has ended and its delay is over."""
        if self._until is None and (status := self.child.exitcode) is not None:
            self._until = now + self._rest_seconds(status, lived=now - self._since)
        if self._until is not None and now >= self._until:
            self.child, self._since, self._until, self._is_first = self._start(), now, None, False

    def _rest_seconds(self, status: int, *, lived: float) -> float:
        message = f"a process ended {lived:.0f} s after its start, with status {status}"
        failed = lived < _PROVEN
        if failed and self._is_first and status >= 0:
            raise CommandRefused(f"{message}; see above")
        self._failed = self._failed + 1 if failed else 0
        rest = min(_FIRST_REST * 2 ** min(self._failed - 2, 10), _LONGEST_REST) if self._failed > 1 else 0.0
        _log.error("%s; restart in %.0f s", message, rest)
        return rest


def _run(target: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent sends SIGTERM
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        target()
    except Exception as error:  # noqa: BLE001 - printed as in the main process
        sys.exit(errors.show(error, as_json=False))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
