"""A campaign on three nodes of PostgreSQL under Patroni: nothing acknowledged is lost, whatever fails."""

from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from examples.cluster import campaign
from examples.cluster.campaign import ClusterPlan
from examples.servers.cluster import Addresses, PatroniCluster
from examples.servers.starting import wait_until

#: What loses commits where something is wrong; `./dev demo --cluster` causes the others as well.
KINDS = frozenset(
    {
        "host of the primary killed",
        "host of the primary frozen",
        "replication cut, then the host killed",
        "switchover",
        "both balancers killed",
        "master of Redis killed",
    }
)


@pytest.mark.debian("patroni")
@pytest.mark.timeout(1800)
def test_nothing_is_lost_or_doubled_while_hosts_and_links_of_a_cluster_fail(short_directory: Path) -> None:
    (directory := short_directory / "cluster").mkdir()
    # How long writes are away depends on the machine, which runs other tests as well.
    plan = ClusterPlan(seed=1, seconds=150, directory=directory, kinds=KINDS, silence=120)
    report = campaign.run(plan)
    assert report.flaws == []
    assert report.finished == report.submitted > 0
    assert report.recoveries == []
    assert len(report.faults) >= 2


@pytest.mark.debian("patroni")
@pytest.mark.timeout(1800)
def test_a_former_primary_that_cannot_be_rewound_copies_the_database_anew(short_directory: Path) -> None:
    (directory := short_directory / "former").mkdir()
    directory.chmod(0o755)
    cluster = PatroniCluster(directory, Addresses())
    broken = directory / "pg_rewind"  # as where the host that it rewinds to is lost meanwhile
    broken.write_text('#!/bin/sh\n[ "$1" = --help ]\n')
    broken.chmod(0o755)
    for node in cluster.nodes.values():
        settings = node.file.read_text()
        node.file.write_text(
            settings.replace("\n  bin_dir:", f"\n  bin_name: {{pg_rewind: {broken}}}\n  bin_dir:")
        )
    cluster.start()
    try:
        former = cluster.wait_for_primary()
        former.kill()
        wait_until(lambda: cluster.find_primary() not in (None, former))
        with closing(psycopg.connect(cluster.direct(cluster.wait_for_primary()), autocommit=True)) as new:
            wait_until(lambda: new.execute("SELECT pg_is_in_recovery()").fetchone() == (False,))
            new.execute("CREATE TABLE since (it integer)")
        former.start()
        wait_until(lambda: cluster.is_whole() and _has_copied(cluster.direct(former)))
    finally:
        cluster.stop()


def _has_copied(standby: str) -> bool:
    with suppress(psycopg.OperationalError), closing(psycopg.connect(standby, autocommit=True)) as copy:
        return copy.execute("SELECT to_regclass('since')").fetchone() != (None,)
    return False
