"""`pilotage worker`: RQ workers that run the optimizers."""

from functools import partial
from typing import Annotated

import typer

from cs_config import gc_tuning
from pilotage.cli import engine, process_setup, settings, wiring
from pilotage.cli.errors import WrongUsage
from pilotage.cli.settings import Settings


@settings.command_with("database_url", "redis_url", "log_level")
def worker(
    chosen: Settings,
    *,
    as_json: bool,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="Number of parallel processes.")
    ] = 1,
    burst: Annotated[bool, typer.Option("--burst", help="Exit when there is no work.")] = False,
) -> None:
    """Run the optimizers: they prepare submitted jobs for matching, woken through Redis.

    Workers can run on several hosts. With --workers, processes that die are restarted. With --json, log lines
    are JSON.

    Example: `pilotage worker --workers 4`.
    """
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    if chosen.redis_url is None:
        raise WrongUsage(
            "a worker needs Redis: --redis-url or PILOTAGE_REDIS_URL (without, `serve` runs the optimizers)"
        )
    if workers == 1:
        run(chosen, chosen.redis_url, burst=burst, as_json=as_json)
    elif burst:
        raise WrongUsage("--burst is for one worker: leave out --workers, or start several commands")
    else:
        process_setup.keep_alive(
            partial(run, chosen, chosen.redis_url, burst=False, as_json=as_json), workers
        )


def run(chosen: Settings, redis_url: str, *, burst: bool, as_json: bool) -> None:
    """Run one worker until SIGTERM; it finishes the current batch first."""
    from optimizers.workers import rq  # optional packages

    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    gc_tuning.collect_seldom()
    with engine.translate_unreachable(chosen.database_url):
        rq.run_worker(
            chosen.database_url,
            redis_url,
            burst=burst,
            track=lambda opened: wiring.watch_history(engine.LastSeen(opened, chosen), opened),
        )
