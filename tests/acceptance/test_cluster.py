"""A campaign on three nodes of PostgreSQL under Patroni: nothing acknowledged is lost, whatever fails."""

from pathlib import Path

import pytest

from examples.cluster import campaign
from examples.cluster.campaign import ClusterPlan

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
