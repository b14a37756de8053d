"""A database of the earlier release is upgraded while the host of its primary is lost."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from examples.servers.cluster import Addresses, PatroniCluster
from examples.servers.starting import wait_until
from tests.support import earlier_release
from tests.support.installation import Installation

TREE = """
Resources: {Sites: {A.B.ch: {CEs: {ce: {Queues: {long: {}}}}}}}
Registry: {VO: {cms: {}}}
"""
_PASSWORD = "of-the-tests"
_JOB = {"jobs": [{"Executable": "/bin/true"}]}
#: A session that waits for what the test holds.
_STANDS = """SELECT count(*) FROM pg_locks WHERE relation = 'alembic_version'::regclass AND NOT granted"""


@pytest.fixture
def cluster(short_directory: Path) -> Iterator[PatroniCluster]:
    (directory := short_directory / "upgrade").mkdir()
    directory.chmod(0o755)
    cluster = PatroniCluster(directory, Addresses())
    cluster.start()
    cluster.create_database("pilotage", _PASSWORD)
    yield cluster
    cluster.stop()


@pytest.fixture
def installation(tmp_path: Path, cluster: PatroniCluster) -> Iterator[Installation]:
    (tmp_path / "resources.yaml").write_text(TREE)
    hosts = ",".join(f"{node.address}:5432" for node in cluster.nodes.values())
    url = f"postgresql://pilotage:{_PASSWORD}@{hosts}/pilotage?target_session_attrs=read-write"
    with ExitStack() as stack:
        yield Installation(tmp_path, {"PILOTAGE_HOME": str(tmp_path), "PILOTAGE_DATABASE_URL": url}, stack)


@pytest.mark.debian("patroni")
@pytest.mark.timeout(1800)
def test_an_upgrade_that_a_failover_ends_has_changed_nothing_and_is_repeated(
    cluster: PatroniCluster, installation: Installation, tmp_path: Path
) -> None:
    program = str(earlier_release.unpack(tmp_path / "earlier"))
    earlier = {"PYTHONPATH": program, "PILOTAGE_DATABASE_URL": _direct(cluster)}
    installation.run("db", "upgrade", **earlier)
    words = ("--resources", str(tmp_path / "resources.yaml"))
    token = installation.token("user", "--user", "ada", "--vo", "cms", **earlier)
    user = installation.client(installation.serve("before", *words, **earlier), token)
    jobs = user.post("/jobs", json=_JOB).json()["job_ids"]
    before = _ask(cluster, "SELECT version_num FROM alembic_version")

    primary = cluster.wait_for_primary()
    with closing(psycopg.connect(cluster.direct(primary, "pilotage"))) as holder:
        holder.execute("LOCK TABLE alembic_version IN SHARE MODE")  # after the first migration's changes
        upgrade = installation.start("upgrade", "db", "upgrade")
        wait_until(lambda: _ask(cluster, _STANDS))
        primary.kill()
    wait_until(lambda: not upgrade.is_running)
    assert "Traceback" not in upgrade.log.read_text()
    wait_until(lambda: cluster.find_primary() not in (None, primary))
    assert _ask(cluster, "SELECT version_num FROM alembic_version") == before, upgrade.log.read_text()

    installation.run("db", "upgrade")
    assert _ask(cluster, "SELECT version_num FROM alembic_version") != before
    # A service of the earlier release goes on beside that of this one, on the server that was a standby.
    earlier["PILOTAGE_DATABASE_URL"] = _direct(cluster)
    user = installation.client(installation.serve("beside", **earlier), token)
    jobs += user.post("/jobs", json=_JOB).json()["job_ids"]
    new = installation.client(installation.serve("new"), token)
    assert sorted(each["job_id"] for each in new.get("/jobs").json()["jobs"]) == jobs
    primary.start()
    wait_until(cluster.is_whole)
    assert new.post("/jobs", json=_JOB).status_code == 201


def _direct(cluster: PatroniCluster) -> str:
    """The address of the primary alone: the earlier release knows no other."""
    return f"postgresql://pilotage:{_PASSWORD}@{cluster.wait_for_primary().address}:5432/pilotage"


def _ask(cluster: PatroniCluster, question: str) -> object:
    [[value]] = cluster.ask(question, "pilotage")
    return value
