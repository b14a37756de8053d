"""A service on a host whose clock is wrong: it goes by the database's time, and hands out no jobs."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.db.clock import DatabaseClock
from tests.support import wait
from tests.support.service import CONFIG, Service, running

DAY = timedelta(days=1)
PLACE = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}


def set_clock(service: Service, offset: timedelta) -> None:
    """The host of the service has another time."""

    measured = DatabaseClock(service.engine, host=lambda: utc_now() + offset)
    object.__setattr__(service.parts, "clock", measured)
    object.__setattr__(service.parts, "clock_problem", lambda: measured.problem)


@pytest.fixture
def service(postgres_url: str, tmp_path: Path) -> Iterator[Service]:
    engine = database.connect(postgres_url)
    with running(engine, tmp_path, CONFIG) as service:
        yield service
    engine.dispose()


@pytest.mark.parametrize(("offset", "where"), [(DAY, "ahead of"), (-DAY, "behind")])
def test_tokens_are_good_and_no_job_is_claimed(service: Service, offset: timedelta, where: str) -> None:
    wait.until(lambda: service.client().get("/readyz").status_code == 200)
    user, pilot = service.user(), service.pilot("LCG.A.org/ce1/long")
    assert user.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).status_code == 201

    set_clock(service, offset)

    assert user.get("/api/v1/jobs").status_code == 200
    assert user.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).status_code == 201
    answer = pilot.post("/api/v1/matcher/requestJob", json=PLACE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "clock_wrong")
    wait.until(lambda: where in service.client().get("/readyz").json()["checks"]["clock"])
    assert service.client().get("/readyz").status_code == 503

    set_clock(service, timedelta(seconds=1))

    wait.until(lambda: service.client().get("/readyz").status_code == 200)
    answer = pilot.post("/api/v1/matcher/requestJob", json=PLACE)
    assert len(answer.json().get("matches", ())) == 1, answer.text
