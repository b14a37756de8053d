"""An ARC CE before a Slurm: what every batch system must do, and a director that fills it.

Jobs take long there: all checks run at once.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from examples.servers.slurm import Slurm
from examples.servers.starting import wait_until
from pilotage.plugins.arc.arc import Arc
from pilotage.plugins.arc.rest import ArcRest, Credentials, connect
from pilotage.plugins.batch_check.conformance import CHECKS, Bench
from pilotage.plugins.batch_check.fault_injection import FaultyHttp
from taskqueue.db import database
from tests.support.directors_on_slurm import Field
from tests.support.servers.arc import ArcCe
from tests.support.service import running as running_service

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms]
      CPUTime: 3600
      CEs:
        arc:
          Queues:
            long: {MaxTotalJobs: 3, MaxWaitingJobs: 3}
Registry:
  VO: {cms: {}}
  Groups:
    cms_user: {VO: cms}
"""

pytestmark = [
    pytest.mark.debian("arc"),
    pytest.mark.debian("slurm"),
    pytest.mark.timeout(1200),
]


def checked(name: str, queue: str, ce: ArcCe) -> None:
    faults = FaultyHttp()
    credentials = Credentials(authorities=ce.authorities, certificate=ce.certificate, key=ce.key)
    with (
        closing(ArcRest(ce.url, credentials, connect=faults.wrap(connect))) as rest,
        closing(
            Bench(system=Arc(rest=rest), queue=queue, faults=faults, gentle=False, poll=2, patience=300)
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


class CeField(Field):
    """A service, a CE, and the file of a director between them."""

    ce: ArcCe

    def system(self) -> dict[str, Any]:
        ce = {
            "url": self.ce.url,
            "token_file": str(self.ce.token()),
            "authorities": str(self.ce.authorities),
        }
        return {"kind": "arc", "ce": ce, "flags": ["APPS/TEST"]}


def test_a_director_that_is_killed_fills_a_ce_with_pilots(
    arc_before_slurm: ArcCe, slurm: Slurm, sqlite_url: str, tmp_path: Path
) -> None:
    engine = database.connect(sqlite_url)
    with running_service(engine, tmp_path, CONFIG) as service:
        field = CeField(service, slurm, tmp_path)
        field.ce = arc_before_slurm
        field.tell({"LCG.A.org/arc/long": "long"})
        field.submit("cms", 6)
        director = field.director()
        try:
            director.start()
            arc_before_slurm.wait_until_taken(field.name)
            director.kill()
            director.start()
            field.wait_until_done(director)
            # The first one was killed between a submission and its report.
            wait_until(lambda: not _open_intents(field).intersection(arc_before_slurm.taken(field.name)))
            wait_until(lambda: _submitted(field).issubset(arc_before_slurm.taken(field.name)))
        finally:
            director.stop()
        pilots = field.pilots()
        assert sum(pilot["jobs"] for pilot in pilots) == 6
        names = arc_before_slurm.taken(field.name)
        assert len(names) == len(set(names)), "no stamp twice"
        assert set(names) <= {pilot["stamp"] for pilot in pilots}, "no batch job without its intent"
    engine.dispose()


def _submitted(field: Field) -> set[str]:
    """Stamps of pilots whose batch jobs are known."""
    return {pilot["stamp"] for pilot in field.pilots() if pilot["reference"]}


def _open_intents(field: Field) -> set[str]:
    """Stamps of pilots that have not ended and whose batch jobs are not known.

    One that did its jobs and ended while no director ran needs none.
    """
    return {
        pilot["stamp"]
        for pilot in field.pilots()
        if not pilot["reference"] and pilot["status"] in {"Submitted", "Waiting", "Running", "Unknown"}
    }
