"""A campaign on three nodes of PostgreSQL under Patroni: nothing acknowledged is lost, whatever fails."""

import re
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest
import yaml

from examples.cluster import campaign
from examples.cluster.campaign import ClusterPlan
from examples.servers.cluster import DEPLOY, Addresses, PatroniCluster
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
        "leader of etcd frozen",
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


@pytest.mark.debian("patroni")
@pytest.mark.timeout(1800)
def test_a_leader_of_etcd_that_was_frozen_takes_no_commit_with_it(short_directory: Path) -> None:
    (directory := short_directory / "etcd").mkdir()
    directory.chmod(0o755)
    cluster = PatroniCluster(directory, Addresses())
    cluster.start()
    try:
        acknowledged = 0
        with closing(psycopg.connect(cluster.direct(cluster.wait_for_primary()), autocommit=True)) as first:
            first.execute("CREATE TABLE acknowledged (it integer)")
        for _ in range(2):
            leader = cluster.etcd.wait_for_leader()
            leader.suspend()
            with closing(psycopg.connect(cluster.direct(cluster.wait_for_primary()), autocommit=True)) as now:
                now.execute("SELECT pg_sleep(25)")  # all leases of before have expired for it
            leader.resume()  # now it revokes them, if it does
            acknowledged += wait_until(lambda: _write(cluster))
            wait_until(cluster.is_whole)
        with closing(psycopg.connect(cluster.direct(cluster.wait_for_primary()))) as last:
            assert last.execute("SELECT count(*) FROM acknowledged").fetchone() == (acknowledged,)
    finally:
        cluster.stop()


def test_no_host_of_postgresql_has_etcd_in_the_shipped_files() -> None:
    patroni = yaml.safe_load((DEPLOY / "patroni" / "patroni.yaml").read_text())
    servers = {address.partition(":")[0] for address in patroni["etcd3"]["hosts"]}
    stated = (DEPLOY / "etcd" / "etcd.env").read_text()
    members = set(re.findall(r"=http://([\d.]+):2380", re.findall("ETCD_INITIAL_CLUSTER=(.*)", stated)[0]))
    balanced = (DEPLOY / "haproxy" / "postgresql.cfg").read_text()
    nodes = set(re.findall(r"server n\d ([\d.]+):5432", balanced))
    assert servers == members
    assert len(servers) == len(nodes) == 3
    assert not servers & nodes


def _write(cluster: PatroniCluster) -> int:
    """Store a row with the primary of now; how many were acknowledged."""
    primary = cluster.find_primary()
    if primary is None:
        return 0
    with suppress(psycopg.Error), closing(psycopg.connect(cluster.direct(primary), autocommit=True)) as now:
        return now.execute("INSERT INTO acknowledged VALUES (1)").rowcount
    return 0


def _has_copied(standby: str) -> bool:
    with suppress(psycopg.OperationalError), closing(psycopg.connect(standby, autocommit=True)) as copy:
        return copy.execute("SELECT to_regclass('since')").fetchone() != (None,)
    return False
