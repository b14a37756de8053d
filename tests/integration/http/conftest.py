from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.running_service import Service, running

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms, dune]
      CEs:
        ce1:
          MaxRAM: 4000
          Queues:
            long: {CPUTime: 100000}
            short: {CPUTime: 3600, VOs: {dune: {MaxRAM: 8000}}}
    LCG.B.org:
      VO: [cms]
      CPUModel: Intel Xeon
      CEs:
        ce2:
          MaxRAM: 16000
          Queues:
            all: {CPUTime: 100000}
Operations:
  Defaults:
    JobDescription:
      Memory: {type: number, resource: MaxRAM, min: 1}
  dune:
    JobScheduling: {MaxRescheduling: 7}
Registry:
  VO: {cms: {}, dune: {}}
  Groups:
    cms_user: {VO: cms}
    dune_user: {VO: dune}
"""


@pytest.fixture
def service(engine: Engine, tmp_path: Path) -> Iterator[Service]:
    with running(engine, tmp_path, CONFIG) as service:
        yield service


@pytest.fixture
def config_text() -> str:
    return CONFIG
