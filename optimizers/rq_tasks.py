"""What RQ runs. Its arguments are job ids alone: where the database is the worker knows."""

import logging
from datetime import UTC, datetime

from sqlalchemy import Engine

from cs_config.live import LiveConfiguration
from optimizers import batch
from taskqueue import database

log = logging.getLogger(__name__)


class Workshop:
    """A worker's database and configuration."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.live = LiveConfiguration()

    def refresh(self) -> None:
        """Take a newer version of the configuration, if there is one.

        Raises:
            OperationalError: The database is away.
        """
        with database.reading(self.engine) as conn:
            self.live.refresh(conn)


_open: list[Workshop] = []


def open_workshop(database_url: str) -> Workshop:
    """Say where `optimize_jobs` of this process finds the database."""
    workshop = Workshop(database.connect(database_url, pool_size=2))
    _open[:] = [workshop]
    return workshop


def optimize_jobs(job_ids: list[int]) -> None:
    """Lead jobs through the optimizers; called by RQ, perhaps twice, perhaps never.

    Raises:
        OperationalError: The database is away; RQ tries again, and after that the sweep.
    """
    if not _open:
        raise RuntimeError("optimize_jobs runs in a worker that `pilotage worker` started")
    workshop = _open[0]
    workshop.refresh()
    result = batch.optimize(workshop.engine, workshop.live.current, job_ids, now=datetime.now(UTC))
    log.info(
        "optimized %d jobs: %d waiting, %d held, %d failed, %d left",
        len(job_ids), len(result.waiting), len(result.held), len(result.failed), len(result.left),
    )  # fmt: skip
