import asyncio
import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine

from examples.servers.postgres import Postgres
from pilotage.service import configuring
from pilotage.service.auth import access
from requirements.classad.evaluation import Program
from tests.support import databases
from tests.support.service import CONFIG


@pytest.fixture(scope="session", autouse=True)
def _no_evaluation_in_the_event_loop() -> Iterator[None]:
    """Users' expressions are evaluated in threads: the event loop waits for none, whatever a test sends."""
    compute = Program._compute

    def compute_in_thread(program: Program, ad: object) -> object:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return compute(program, ad)
        raise AssertionError(f"evaluated in the event loop: {program.text}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "_compute", compute_in_thread)
        yield


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh database: SQLite, and PostgreSQL where a module is marked `tests.support.databases.BOTH`.

    Interface, pages and commands stand on functions that are tested on both;
    `service/routes/test_every_route.py` walks every route and page on PostgreSQL.
    """
    url: str = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    return url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def any_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A database for all tests of a module, which keep out of each other's way."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("database") / "module.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        engine = databases.connect(f"sqlite:///{path}")
        yield engine
        engine.dispose()
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.fresh() as url:
        engine = databases.connect(url)
        yield engine
        engine.dispose()


@pytest.fixture
def _rates_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, for the rates of callers no time goes by."""
    for module in (access, configuring):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 1.0))


@pytest.fixture
def config_text() -> str:
    return CONFIG
