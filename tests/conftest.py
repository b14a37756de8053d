"""What all tests share: the servers, a fresh database a test, a fixed time, the example grid."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Collection, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine

from cs_config import gc_pause, validate
from cs_config.tree.configuration import Configuration
from examples.servers.postgres import Postgres
from examples.servers.redis_server import RedisServer
from examples.servers.slurm import Slurm
from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.blob_stores.store import BlobStore
from taskqueue.db import database, log_partitions
from tests import debian, tiers
from tests.support import databases, left_out
from tests.support.servers.arc import ArcCe
from tests.support.servers.grid_engine import GridEngine
from tests.support.servers.htcondor import HTCondorPool
from tests.support.servers.pgbouncer import Pgbouncer
from tests.support.servers.s3_server import S3Server, make_store, running_s3_server

ROOT = Path(__file__).parent.parent

#: Begins the reason of a test that needs a kernel like no host of this run has; the end of a run names it.
NOT_RUN = "NOT RUN"

# How long an example takes is the machine's business. The same source tries the same examples: what passed
# for a change passes in CI. New ones are drawn with --hypothesis-profile=random.
settings.register_profile(
    "tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("random", settings.get_profile("tests"), derandomize=False, print_blob=True)
settings.load_profile("tests")

#: Tests of plug-ins whose folder was removed.
collect_ignore_glob = left_out.list_tests()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("middle", "called", "all"),
        help="which tier of tests (tests/tiers.py); without it nothing that is named here is left out",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs root and what is nightly; leave out what this account, host and tier do not run.

    Where nothing may be left out, a suite without its programs is an error. First: `-m` is applied after it.
    """
    missing = debian.list_missing()
    left_out = set()
    places: dict[pytest.Item, int] = {}
    called = tiers.list_called() if config.option.tier == "called" else []
    for item in items:
        suites = {mark.args[0] for mark in item.iter_markers("debian")}
        if any(debian.SUITES[name].needs_root for name in suites):
            item.add_marker("root")
        if group := tiers.group_of(item.nodeid, suites, _database_of(item)):
            item.add_marker(pytest.mark.nightly(group.name))
            item.user_properties.append(("group", group.name))
        needs_other_account = item.get_closest_marker("root") is not None and os.geteuid() != 0
        if needs_other_account or _is_of_another_tier(config.option.tier, called, group):
            left_out.add(item)
        elif suites & missing.keys():
            if debian.ALL_OF_THEM:
                raise pytest.UsageError(
                    f"no programs for the suites {', '.join(missing)}: ./dev test --install"
                )
            left_out.add(item)
        elif called and group:
            places[item] = called.index(group.name)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = sorted((item for item in items if item not in left_out), key=lambda item: places.get(item, 0))


def _database_of(item: pytest.Item) -> str:
    """Which database a test of both runs on; empty: it is none."""
    call = getattr(item, "callspec", None)
    return "" if call is None else str(call.params.get("database_url", ""))


def _is_of_another_tier(tier: str | None, called: Collection[str], group: tiers.Group | None) -> bool:
    if tier == "middle":
        return group is not None
    return tier == "called" and (group is None or group.name not in called)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no called test when the time of its tier is over."""
    if item.config.option.tier == "called" and time.time() > float(os.environ["PILOTAGE_TESTS_UNTIL"]):
        pytest.skip("no time was left for it")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what no host like this one tries; note which groups of the nightly tier passed in a run of all."""
    for report in _reports_of(terminalreporter, ("skipped",)):
        if NOT_RUN in str(report.longrepr):
            terminalreporter.write_line(f"{report.nodeid}: {report.longrepr}", red=True, bold=True)
    is_whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    if config.option.tier == "all" and is_whole:
        passed, failed = (
            {
                dict(report.user_properties).get("group", "")
                for report in _reports_of(terminalreporter, outcomes)
            }
            for outcomes in (("passed",), ("failed", "error"))
        )
        if whole := passed - failed - {""}:
            tiers.note_runs(whole)


def _reports_of(reporter: pytest.TerminalReporter, outcomes: Collection[str]) -> Iterator[pytest.TestReport]:
    """The reports of tests, and of their fixtures, with one of these outcomes."""
    for outcome in outcomes:
        yield from (each for each in reporter.stats.get(outcome, ()) if isinstance(each, pytest.TestReport))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """No group that is called, or none of this account, is no failure."""
    if session.config.option.tier == "called" and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


#: Variables of the tests themselves.
_OF_TESTS = {
    "PILOTAGE_HOSTILE_INPUTS",
    "PILOTAGE_MODEL_MINUTES",
    "PILOTAGE_MODEL_REPEAT",
    "PILOTAGE_MODEL_SEED",
    "PILOTAGE_PICTURES",
    "PILOTAGE_SCHEMA_EXAMPLES",
    "PILOTAGE_TESTS_UNTIL",
    "PILOTAGE_TEST_ALL",
}


def pytest_configure() -> None:
    """Keep settings of an installation of the user's own, and startup files of shells, out of all tests."""
    for name in set(os.environ) - _OF_TESTS:
        if name.startswith("PILOTAGE_") or name in {"BASH_ENV", "ENV"}:
            del os.environ[name]
    # A shell ignores Ctrl-C in what it starts in the background, and so would each program of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault(
        "PILOTAGE_TESTS_UNTIL", str(time.time() + tiers.TIME)
    )  # for all processes of this run


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported and tests are made: that takes a third of the time."""
    with gc_pause.pause_collection():
        return (yield)


def pytest_collection_finish() -> None:
    """Leave the thousands of tests, and all modules, out of every garbage collection, and collect seldom."""
    gc.freeze()
    gc.set_threshold(20_000)


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests fail."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Close what a failed test left open.

    Its traceback would keep it until the next test, which the warning about it would make fail as well.
    """
    result = yield
    if item.stash.get(_FAILED, False):
        for name in ("last_exc", "last_value", "last_traceback", "last_type"):
            if hasattr(sys, name):
                delattr(sys, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return result


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 3, 28, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="session")
def osg() -> Configuration:
    return validate.load_file(ROOT / "examples" / "osg" / "resources.yaml")


@pytest.fixture(scope="session")
def short_directory() -> Iterator[Path]:
    """A directory whose path is short enough for unix sockets (107 bytes)."""
    directory = Path(tempfile.mkdtemp(prefix="pilotage-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(short_directory: Path) -> Iterator[Postgres]:
    # A transaction of autovacuum would hold back readers of the log and the removal of old rows, at any time.
    with databases.run_postgres(short_directory / "pg", {"autovacuum": "off"}) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    with postgres.fresh() as url:
        yield url


@pytest.fixture
def partitioned_url(postgres_url: str) -> str:
    """A fresh, migrated database of PostgreSQL whose job log is in partitions."""
    engine = database.connect(postgres_url)
    log_partitions.convert(engine)
    engine.dispose()
    return postgres_url


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[Pgbouncer]:
    """A pooler in transaction mode before the same server."""
    pooler = Pgbouncer(postgres)
    pooler.start()
    yield pooler
    pooler.stop()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    database.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    path = tmp_path / "test.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh, migrated database: the same suite runs on both, or on all of `databases.LAYOUTS`."""
    url: str = request.getfixturevalue(databases.FIXTURES[request.param])
    return url


@pytest.fixture
def postgresql(postgres_url: str) -> Iterator[Engine]:
    """A fresh, migrated database of PostgreSQL, for what SQLite does not have."""
    engine = databases.connect(postgres_url)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = databases.connect(database_url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def _redis(short_directory: Path) -> Iterator[RedisServer]:
    directory = short_directory / "redis"
    directory.mkdir()
    server = RedisServer(directory)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(_redis: RedisServer) -> Iterator[RedisServer]:
    """An empty Redis that runs; a test may kill it, the next one finds it started again."""
    _redis.flush()
    yield _redis
    _redis.stop()
    _redis.start()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server of S3 that runs; for tests with a prefix of their own."""
    with running_s3_server() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[S3Server]:
    """A server of S3 that the test may kill."""
    with running_s3_server() as server:
        yield server


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlobStore:
    """An empty store of archives: the same suite runs on both kinds."""
    if request.param == "directory":
        return DirectoryStore(tmp_path / "blobs")
    server: S3Server = request.getfixturevalue("s3_server")
    return make_store(server.place(), monkeypatch)


@pytest.fixture(scope="session")
def slurm(short_directory: Path) -> Iterator[Slurm]:
    """A real Slurm with two partitions and node features; for tests that clean up behind them."""
    directory = short_directory / "slurm"
    directory.mkdir()
    cluster = Slurm(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def grid_engine(short_directory: Path) -> Iterator[GridEngine]:
    """A real Grid Engine with two queues; for tests that clean up behind them."""
    directory = short_directory / "ge"
    directory.mkdir()
    cell = GridEngine(directory)
    try:
        cell.start()
        yield cell
    finally:
        cell.stop()


@pytest.fixture(scope="session")
def htcondor_pool(short_directory: Path) -> Iterator[HTCondorPool]:
    """A real pool of HTCondor that is entered by token; for tests that clean up behind them."""
    directory = short_directory / "condor"
    directory.mkdir()
    with HTCondorPool(directory) as pool:
        yield pool


@pytest.fixture(scope="module")
def arc_ce(short_directory: Path) -> Iterator[ArcCe]:
    """A real ARC CE that runs jobs as processes of this host; for tests that clean up behind them."""
    directory = short_directory / "arc"
    directory.mkdir()
    with ArcCe(directory) as ce:
        yield ce


@pytest.fixture(scope="module")
def arc_before_slurm(short_directory: Path, slurm: Slurm) -> Iterator[ArcCe]:
    """A real ARC CE before a real Slurm."""
    directory = short_directory / "arc-slurm"
    directory.mkdir()
    with ArcCe.before_slurm(directory, slurm.environment) as ce:
        yield ce
