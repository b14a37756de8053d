"""Supervisor process between pilot and payload: no process of the payload outlives it or the pilot.

It adopts every orphan of the payload, so none can escape by leaving its session or its parent. It receives
orders from the pilot on standard input and sends news on standard output, one JSON object per line. End of
input means that the pilot has died, for whatever reason; the payload is then ended.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pilotage.fabric.pilot.node import linux
from pilotage.fabric.pilot.payload import archives

#: Seconds between TERM and KILL for a payload whose pilot has died.
_GRACE_OF_ORPHANS = 5.0
#: Seconds between two rounds of ending processes.
_ROUND = 0.05
#: Seconds after which a process that survives KILL (stuck in the kernel) is abandoned.
_HOPELESS = 30.0
_NOT_STARTED = 127
_INPUT, _OUTPUT = 0, 1


@dataclass(frozen=True)
class SupervisorOrder:
    """The payload to run: the pilot's first line."""

    words: tuple[str, ...]  #: the program and its arguments; the program as a path
    directory: str
    environment: Mapping[str, str]
    output: int  #: descriptor
    error: int  #: descriptor
    area: str  #: directory to remove if the pilot has died
    cpus: tuple[int, ...] = ()  #: of the kernel, to which it is bound; none: all that we may use
    members: str = ""  #: file of the cgroup with its processes, to which it is added; empty: none


def main() -> int:
    """Run one payload as specified on standard input."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    linux.adopt_orphans()
    line, rest = _first_line()
    raw = json.loads(line)
    return _Supervisor(SupervisorOrder(**{**raw, "words": tuple(raw["words"])}), received=rest).run()


def _first_line() -> tuple[bytes, bytes]:
    """The first line of the input, and what follows it: a buffer would hide that from select."""
    received = b""
    while b"\n" not in received:
        piece = os.read(_INPUT, 65536)
        if not piece:
            sys.exit(0)  # the pilot died before its first line
        received += piece
    line, _, rest = received.partition(b"\n")
    return line, rest


class _Supervisor:
    def __init__(self, order: SupervisorOrder, *, received: bytes) -> None:
        self._order = order
        self._woken, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._received = received
        self._pilot_lives = True
        self._ended: dict[str, Any] | None = None  #: how the payload itself ended
        self._kill_at: float | None = None
        self._payload = 0

    def run(self) -> int:
        self._start()
        self._reap()
        while self._ended is None:
            self._listen(None if self._kill_at is None else _ROUND)
            self._kill_if_due()
            self._reap()  # last: once the end is noted nothing would wake `_listen` any more
        self._end_the_rest()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # all processes of the payload, reaped by now
        measured = {"cpu_seconds": round(used.ru_utime + used.ru_stime, 3), "resident": used.ru_maxrss << 10}
        self._send({"ended": {**self._ended, **measured}})
        if not self._pilot_lives:
            archives.remove_tree(Path(self._order.area))
        return 0

    def _start(self) -> None:
        """Start the payload once the pilot has its process id, needed for cleanup if we are killed."""
        go, release = os.pipe()
        read, failure = os.pipe()  # closed by exec; any content is the reason why it failed
        self._payload = os.fork()
        if self._payload == 0:
            os.close(release)
            if not os.read(go, 1):
                os._exit(_NOT_STARTED)  # the supervisor was killed
            _become(self._order, failure)
        for each in {go, failure, self._order.output, self._order.error}:
            os.close(each)
        self._send({"pid": self._payload})
        os.write(release, b"1")
        os.close(release)
        with os.fdopen(read, "rb") as said:
            problem = said.read().decode("utf-8", "replace")
        self._send({"problem": problem} if problem else {"started": True})

    def _listen(self, timeout: float | None) -> None:
        inputs = [_INPUT, self._woken] if self._pilot_lives else [self._woken]
        ready, _, _ = select.select(inputs, [], [], timeout)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if _INPUT in ready:
            self._receive(os.read(_INPUT, 4096))

    def _receive(self, said: bytes) -> None:
        if not said:
            self._lose_pilot()
            return
        *lines, self._received = (self._received + said).split(b"\n")
        for line in lines:
            self._end(float(json.loads(line)["end"]))

    def _lose_pilot(self) -> None:
        self._pilot_lives = False
        self._end(_GRACE_OF_ORPHANS)

    def _end(self, grace: float) -> None:
        """Send TERM now and KILL after `grace` seconds; of several calls the earliest KILL counts."""
        at = time.monotonic() + grace
        if self._kill_at is None:
            below = linux.descendants(os.getpid())
            linux.send_signal(below, signal.SIGTERM)
            linux.send_signal(below, signal.SIGCONT)  # a stopped process does not receive TERM
        self._kill_at = at if self._kill_at is None else min(at, self._kill_at)

    def _kill_if_due(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            linux.send_signal(linux.descendants(os.getpid()), signal.SIGKILL)

    def _end_the_rest(self) -> None:
        if self._kill_at is None:
            self._end(0.0)
        give_up = time.monotonic() + _HOPELESS
        while linux.descendants(os.getpid()) and time.monotonic() < give_up:
            self._kill_if_due()
            self._reap()
            time.sleep(_ROUND / 5)

    def _reap(self) -> None:
        """Wait for every child that has ended, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._payload:
                self._ended = _as_end(status)

    def _send(self, news: Mapping[str, object]) -> None:
        try:
            os.write(_OUTPUT, json.dumps(news).encode() + b"\n")
        except BrokenPipeError:  # it died before it read this: its input is not looked at any more
            self._lose_pilot()


def _as_end(status: int) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        return {"exit_code": 128 + os.WTERMSIG(status), "signal": os.WTERMSIG(status)}
    return {"exit_code": os.WEXITSTATUS(status), "signal": None}


def _become(order: SupervisorOrder, failure: int) -> NoReturn:
    try:
        os.setsid()
        linux.die_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the pilot blocks some
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (order.output, 1), (order.error, 2)):
            os.dup2(source, target)
        os.closerange(3, failure)
        os.closerange(failure + 1, 256)
        os.chdir(order.directory)
        if order.members:
            with suppress(OSError):  # then its memory is only watched
                linux.join_cgroup(order.members)
        if order.cpus:
            with suppress(OSError):  # the batch system has taken one away meanwhile
                os.sched_setaffinity(0, order.cpus)
        _execute(order)
    except OSError as error:
        os.write(failure, (error.strerror or str(error)).encode())
    finally:
        os._exit(_NOT_STARTED)


def _execute(order: SupervisorOrder) -> None:
    program, *_ = order.words
    try:
        os.execve(program, order.words, dict(order.environment))  # noqa: S606 - no shell is wanted
    except OSError as error:
        if error.errno != errno.ENOEXEC:  # a script without a first line, which shells run themselves
            raise
    os.execve("/bin/sh", ("/bin/sh", *order.words), dict(order.environment))  # noqa: S606
