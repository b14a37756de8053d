"""`pilotage director` on batch systems that are worked in a dialect, or carry pilots' files themselves."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from examples.servers.slurm import Slurm
from tests.support.directors_on_slurm import Field
from tests.support.servers import torque
from tests.support.service import running_on_sqlite

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms]
      CPUTime: 3600
      MaxRAM: 300
      CEs:
        ce01:
          Queues:
            short: {MaxTotalJobs: 10, MaxWaitingJobs: 10}
Registry:
  VO: {cms: {}}
  Groups:
    cms_user: {VO: cms}
"""


class CommandField(Field):
    """With another batch system than Slurm."""

    settings: Mapping[str, object]

    def system(self) -> dict[str, Any]:
        return {"directory": str(self.directory / "jobs"), **self.settings}


def _pbs(request: pytest.FixtureRequest, directory: Path) -> Mapping[str, object]:
    slurm: Slurm = request.getfixturevalue("slurm")
    request.addfinalizer(slurm.end_jobs)
    environment = torque.environment(slurm, directory / "bin")
    return {"kind": "pbs", "environment": dict(environment)}


@pytest.fixture(
    params=[
        pytest.param(_pbs, marks=pytest.mark.debian("torque")),
    ]
)
def field(request: pytest.FixtureRequest, sqlite_template: Path, tmp_path: Path) -> Iterator[CommandField]:
    make: Callable[[pytest.FixtureRequest, Path], Mapping[str, object]] = request.param
    with running_on_sqlite(sqlite_template, tmp_path, CONFIG) as service:
        field = CommandField(service, None, tmp_path)  # type: ignore[arg-type]
        field.settings = make(request, tmp_path)
        field.tell({"LCG.A.org/ce01/short": "short"})
        yield field


def test_jobs_are_done_once_though_the_director_is_killed(field: CommandField) -> None:
    field.submit("cms", 4)
    assert field.once()["submitted"] == 4

    with field.director() as director:
        director.kill()
        director.start()
        field.wait_until_done(director)

    pilots = field.pilots()
    assert sum(pilot["jobs"] for pilot in pilots) == 4
    references = Counter(pilot["reference"] for pilot in pilots if pilot["reference"])
    assert max(references.values()) == 1
