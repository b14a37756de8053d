"""A process with a matcher and pilots that take all they are given: `DATABASE_URL PILOTS COUNT`.

Prints the ids of the jobs that its pilots got, a JSON list.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from random import Random

import pytest

from matcher.claim.claim_thread import ClaimWorker
from matcher.claim.matcher import Matcher
from taskqueue.db import database
from tests.support import databases
from tests.support.factories import queued_jobs


def main(url: str, pilots: int, count: int) -> list[int]:
    """Drain, and tell what was taken."""
    databases.wait_patiently(pytest.MonkeyPatch())
    engine = database.connect(url)
    config = queued_jobs.grid()
    matcher = Matcher(engine, lambda: config, lambda: datetime(2026, 3, 28, 12, 0, tzinfo=UTC), Random())
    claimer = ClaimWorker(engine, matcher)
    claimer.start()

    def pilot(_number: int) -> list[int]:
        mine: list[int] = []
        while True:
            ticket = claimer.submit(queued_jobs.request(count=count, **queued_jobs.at(queued_jobs.LONG)))
            answer = ticket.future.result(300)
            if answer.reason:
                return mine
            mine += [match.job_id for match in answer.matches]

    with ThreadPoolExecutor(pilots) as threads:
        taken = [job_id for mine in threads.map(pilot, range(pilots)) for job_id in mine]
    claimer.stop()
    engine.dispose()
    return taken


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
