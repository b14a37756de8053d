"""A campaign on three nodes of PostgreSQL under Patroni: nothing acknowledged is lost, whatever fails."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml

from examples.cluster import campaign
from examples.cluster.campaign import ClusterPlan
from examples.servers.cluster import DEPLOY, Addresses, PatroniCluster, find_program
from examples.servers.starting import wait_until
from examples.servers.supervised import Supervised

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
    plan = ClusterPlan(seed=1, seconds=150, directory=directory, kinds=KINDS, least=2, silence=600)
    report = campaign.run(plan)
    assert report.flaws == []
    assert report.finished == report.submitted > 0
    assert report.recoveries == []
    assert len(report.faults) >= plan.least


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
        cluster.execute("CREATE TABLE IF NOT EXISTS since (it integer)")
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
        cluster.execute("CREATE TABLE IF NOT EXISTS acknowledged (number integer)")
        for number in range(2):
            leader = cluster.etcd.wait_for_leader()
            leader.suspend()
            time.sleep(25)  # all leases of before have expired for it
            leader.resume()  # now it revokes them, if it does
            cluster.execute(f"INSERT INTO acknowledged VALUES ({number})")
            wait_until(cluster.is_whole)
        stored = cluster.ask("SELECT DISTINCT number FROM acknowledged ORDER BY number")
        assert stored == [(0,), (1,)]
    finally:
        cluster.stop()


@pytest.mark.debian("patroni")
@pytest.mark.timeout(1800)
def test_etcd_moves_to_other_hosts_and_the_primary_stays_one(short_directory: Path) -> None:
    """In the order of `docs/operator/high-availability.md`."""
    (directory := short_directory / "move").mkdir()
    directory.chmod(0o755)
    cluster = PatroniCluster(directory, Addresses())
    for node in cluster.nodes.values():  # elections of etcd take longer on a busy machine
        settings = node.file.read_text().replace("ttl: 20", "ttl: 300")
        node.file.write_text(settings.replace("retry_timeout: 5", "retry_timeout: 120"))
    former = list(cluster.etcd.servers.values())
    later = [_on_another_host(server, cluster.user) for server in former]
    cluster.start()
    try:
        primary = cluster.wait_for_primary()
        timeline = wait_until(cluster.members)[primary.name]["timeline"]
        for server in later:
            peer = server.env["ETCD_INITIAL_ADVERTISE_PEER_URLS"]
            members = wait_until(partial(_add_member, former[0], peer))
            server.env["ETCD_INITIAL_CLUSTER"] = ",".join(
                f"{each.get('name') or server.env['ETCD_NAME']}={each['peerURLs'][0]}" for each in members
            )
            server.start()
            wait_until(partial(_have_names, former[0]))
        cluster.control("pause", "--wait")
        for node in cluster.nodes.values():
            settings = node.file.read_text()
            for before, after in zip(former, later, strict=True):
                settings = settings.replace(_address_of(before), _address_of(after))
            node.file.write_text(settings)
            node.patroni.stop()
            node.patroni.start()
        wait_until(cluster.is_whole)
        cluster.control("resume", "--wait")
        members = wait_until(partial(_list_members, later[0]))
        numbers = {each["name"]: each["ID"] for each in members}
        for server in former:
            wait_until(partial(_remove_member, later[0], numbers[server.env["ETCD_NAME"]]))
            wait_until(lambda ended=server: not ended.is_running)
        wait_until(cluster.is_whole)
        cluster.execute("CREATE TABLE IF NOT EXISTS since (it integer)")
        last = wait_until(cluster.members)[primary.name]
        assert (last["role"], last["timeline"]) == ("leader", timeline)  # it was never anything else
    finally:
        cluster.stop()
        for server in later:
            server.stop()


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


def _address_of(etcd: Supervised) -> str:
    return etcd.env["ETCD_LISTEN_CLIENT_URLS"].removeprefix("http://")


def _on_another_host(etcd: Supervised, user: int | None) -> Supervised:
    """The member of etcd that is to stand in for another; it lacks the list of those that are there then."""
    host = _address_of(etcd).partition(":")[0]
    settings = {name: value.replace(host, f"{host}0") for name, value in etcd.env.items()}
    settings["ETCD_NAME"] = f"new-{settings['ETCD_NAME']}"
    settings["ETCD_DATA_DIR"] += "-new"
    settings["ETCD_INITIAL_CLUSTER_STATE"] = "existing"
    log = etcd.log.with_name(f"new-{etcd.log.name}")
    return Supervised(f"new-{etcd.name}", (), env=settings, log=log, program=find_program("etcd"), user=user)


def _change_members(etcd: Supervised, what: str, **more: Any) -> Mapping[str, Any]:
    """As `etcdctl member`; empty: refused, as for some seconds after a member was started, or not answered.

    What is asked for while a leader is elected, since the former one was removed, is never answered.
    """
    url = f"http://{_address_of(etcd)}/v3/cluster/member/{what}"
    with suppress(httpx.HTTPError):
        answer = httpx.post(url, json=more, trust_env=False, timeout=10)
        if answer.is_success:
            members: Mapping[str, Any] = answer.json()
            return members
    return {}


def _list_members(etcd: Supervised) -> Sequence[Mapping[str, Any]]:
    members: Sequence[Mapping[str, Any]] = _change_members(etcd, "list").get("members", ())
    return members


def _add_member(etcd: Supervised, peer: str) -> Sequence[Mapping[str, Any]]:
    """All members with one more; it is not added twice, where the first answer came too late."""
    members = _list_members(etcd)
    if not members or any(peer in each["peerURLs"] for each in members):
        return members
    return list(_change_members(etcd, "add", peerURLs=[peer]).get("members", ()))


def _remove_member(etcd: Supervised, number: str) -> bool:
    """Whether a member is gone; it is not removed twice, where the first answer came too late."""
    members = _list_members(etcd)
    if members and all(each["ID"] != number for each in members):
        return True
    return bool(_change_members(etcd, "remove", ID=number))


def _have_names(etcd: Supervised) -> bool:
    """Whether each member has told its name, as some time after its start."""
    members = _list_members(etcd)
    return bool(members) and all(each.get("name") for each in members)


def _has_copied(standby: str) -> bool:
    with suppress(psycopg.OperationalError), closing(psycopg.connect(standby, autocommit=True)) as copy:
        return copy.execute("SELECT to_regclass('since')").fetchone() != (None,)
    return False
