"""A job's way on a large PostgreSQL, with what it read and the plans of its slowest statements; by hand:

python -m tests.support.scripts.large_database_plans --waiting 1000000 --finished 10000000
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from examples.servers.postgres import Postgres
from taskqueue.db import database
from tests.support import large_database

#: Long lists of ids in plans.
_SHORT = re.compile(r"\{[^}]{80,}\}")


@dataclass
class Slowest:
    """The longest time of each statement, with the values that it had then."""

    seconds: dict[str, float] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def watch(self, engine: Engine) -> Iterator[None]:
        """Look at all statements of an engine."""
        hooks = {"before_cursor_execute": self._begins, "after_cursor_execute": self._ends}
        for name, hook in hooks.items():
            event.listen(engine, name, hook)
        yield
        for name, hook in hooks.items():
            event.remove(engine, name, hook)

    def plans(self, engine: Engine, most: int) -> Iterator[str]:
        """The plans of the slowest, each carried out again and undone."""
        for statement in sorted(self.seconds, key=lambda each: -self.seconds[each])[:most]:
            with engine.connect() as conn:
                cursor = conn.connection.cursor()
                values = self.values[statement]
                cursor.execute(
                    f"EXPLAIN (ANALYZE, BUFFERS) {statement}",
                    values[0] if isinstance(values, list) else values,
                )
                plan = "\n".join(_SHORT.sub("{…}", line) for (line,) in cursor.fetchall())
                conn.rollback()
            yield f"{self.seconds[statement]:.4f} s: {' '.join(statement.split()):.400}\n{plan:.4000}\n"

    def _begins(self, *arguments: Any) -> None:
        arguments[4].began = time.perf_counter()

    def _ends(self, *arguments: Any) -> None:
        _conn, _cursor, statement, values, context, _many = arguments
        seconds = time.perf_counter() - context.began
        if seconds > self.seconds.get(statement, 0):
            self.seconds[statement], self.values[statement] = seconds, values


def main(directory: Path, *, waiting: int, finished: int, most: int) -> None:
    """Fill, walk and tell."""
    (directory / "pg").mkdir()
    server = Postgres(directory / "pg")
    server.start()
    try:
        server.execute("CREATE DATABASE large")
        database.upgrade(server.url("large"))
        engine = database.connect(server.url("large"))
        large_database.fill(engine, directory, waiting=waiting, finished=finished)
        before, slowest = large_database.read(server, engine), Slowest()
        with slowest.watch(engine), large_database.service_on(engine, directory) as service:
            began = time.perf_counter()
            job_ids = large_database.live(service, large_database.CLASSES)
            sys.stdout.write(f"{len(job_ids)} jobs lived {time.perf_counter() - began:.2f} s\n")
            large_database.look(service, job_ids[0])
            large_database.agents(service)
        for table, spent in large_database.spent(before, large_database.read(server, engine)).items():
            sys.stdout.write(f"{table:24} {spent}\n")
        sys.stdout.writelines(slowest.plans(engine, most))
        engine.dispose()
    finally:
        server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--plans", type=int, default=15, help="how many to show")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pilotage-at-size-") as place:
        Path(place).chmod(0o755)
        main(Path(place), waiting=options.waiting, finished=options.finished, most=options.plans)
