"""`pilotage worker`: an RQ worker that runs the optimizers."""

from typing import Annotated

import typer

from optimizers import worker as optimizer_worker
from pilotage.cli import databases, logs, options, settings
from pilotage.cli.failures import WrongUsage


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker")(worker)


def worker(
    *,
    burst: Annotated[bool, typer.Option("--burst", help="End when there is nothing to do.")] = False,
    database_url: options.DatabaseUrl = None,
    redis_url: options.RedisUrl = None,
    log_level: options.LogLevel = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Prepare submitted jobs for matching: the optimizer chain, rung for through Redis.

    Any number of workers on any hosts. With --json log lines are JSON.
    """
    flags = {"home": home, "database_url": database_url, "redis_url": redis_url, "log_level": log_level}
    chosen = settings.load(flags)
    if chosen.redis_url is None:
        raise WrongUsage(
            "a worker needs Redis: --redis-url or PILOTAGE_REDIS_URL (without, `serve` runs the optimizers)"
        )
    logs.configure(chosen.log_level, as_json=as_json)
    with databases.away_in_one_line(chosen.database_url):
        optimizer_worker.run(chosen.database_url, chosen.redis_url, burst=burst)
