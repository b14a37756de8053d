"""A process that stores new limits and is killed before its first statement, its second, and so on.

`python -m tests.support.scripts.rule_follower_crash URL`; after each death another process goes on, and
prints what it found: whether all rules are open, and whether their counters are the numbers of attempts.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Engine, event

from cs_config.tree.configuration import Configuration
from matcher.limits import compiled_rules
from matcher.limits.compiled_rules import RuleFollower
from taskqueue.db import database
from taskqueue.sites import rule_counters, scope_rules
from tests.support import databases
from tests.support.factories import queued_jobs

#: Two versions take turns, so that each stores a limit and removes one.
_LIMITS = ("{VO: {lhcb: 5}}", "{Owner: {Alice: 6}, CEs: {ce1: {VO: {lhcb: 4}}}}")
_OPTIONS = "Operations: {{Defaults: {{JobScheduling: {{RunningLimit: {{A.B.ch: {limits}}}}}}}}}\n"


def _build_config(version: int) -> Configuration:
    return queued_jobs.grid(queued_jobs.GRID + _OPTIONS.format(limits=_LIMITS[version % 2]), version)


def _follow_and_die(url: str, statements: int) -> None:
    engine = database.connect(url)
    left = iter(range(statements))

    def count(*_: object) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(engine, "before_cursor_execute", count)
    event.listen(engine, "commit", count)
    _follow(engine, statements + 1)


def _follow(engine: Engine, version: int) -> None:
    follower, config = RuleFollower(engine), _build_config(version)
    while not follower.follow(config):
        pass


def _go_on(url: str, statements: int) -> None:
    engine = database.connect(url)
    _follow(engine, statements + 1)
    with database.reading(engine) as conn:
        opened = all(each.opened for each in scope_rules.list_rules(conn))
        equal = not rule_counters.list_differences(conn, compiled_rules.counts)
    sys.stdout.write(f"{statements} {opened} {equal}\n")
    sys.stdout.flush()


def _run(task: Callable[[], None]) -> int:
    """Run it in a process of its own; its exit status."""
    if (pid := os.fork()) == 0:
        task()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def main(url: str) -> None:
    """Kill at every statement, until a process ends by itself."""
    databases.wait_patiently(pytest.MonkeyPatch())
    statements = 0
    while _run(partial(_follow_and_die, url, statements)):
        assert _run(partial(_go_on, url, statements)) == 0
        statements += 1


if __name__ == "__main__":
    main(sys.argv[1])
