"""A matcher process whose pilots ask and ask; prints the leases that they are given, one a line.

Arguments: database URL, file with the configuration, `Site/CE/Queue`, a file that stays until it shall end.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from cs_config.tree.address import QueueAddress
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from taskqueue.db import database
from tests.support import databases
from tests.support.factories import queued_jobs


def main(url: str, file: str, queue: str, until_gone: str) -> None:
    databases.wait_patiently(pytest.MonkeyPatch())
    engine = database.connect(url)
    config = queued_jobs.grid(Path(file).read_text())
    matcher = Matcher(engine, lambda: config, lambda: datetime.now(UTC), Random())
    where = queued_jobs.at(QueueAddress.parse(queue))
    while Path(until_gone).exists():
        for look in matcher.serve([queued_jobs.request(**where, count=2) for _ in range(4)]):
            if isinstance(look, ClaimResult):
                for job in look.claimed:
                    sys.stdout.write(f"{job.lease}\n")
        sys.stdout.flush()
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
