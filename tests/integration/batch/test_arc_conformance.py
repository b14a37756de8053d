"""What every batch system must do, of an ARC CE before a Slurm. Jobs take long there: all run at once."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import cycle

import pytest

from pilotage.fabric.batch.arc import Arc
from pilotage.fabric.batch.arc_rest import ArcRest, Credentials
from pilotage.fabric.batch.bench import Bench
from pilotage.fabric.batch.conformance import CHECKS
from pilotage.fabric.batch.glitchy_http import GlitchyHttp
from tests.arc_ce import ArcCe

pytestmark = [pytest.mark.debian("arc"), pytest.mark.debian("slurm"), pytest.mark.slow]


def checked(name: str, queue: str, ce: ArcCe) -> None:
    faults = GlitchyHttp()
    credentials = Credentials(authorities=ce.authorities, certificate=ce.certificate, key=ce.key)
    with (
        closing(ArcRest(ce.url, credentials, connect=faults.connect)) as rest,
        closing(
            Bench(system=Arc(rest=rest), queue=queue, faults=faults, gentle=False, poll=2, patience=180)
        ) as bench,
    ):
        CHECKS[name](bench)


@pytest.fixture(scope="module")
def running(arc_before_slurm: ArcCe) -> Iterator[dict[str, Future[None]]]:
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        yield {
            name: pool.submit(checked, name, queue, arc_before_slurm)
            for name, queue in zip(CHECKS, cycle(("long", "short")), strict=False)
        }


@pytest.mark.parametrize("check", CHECKS)
def test_an_arc_ce_does_what_it_must(running: dict[str, Future[None]], check: str) -> None:
    running[check].result()
