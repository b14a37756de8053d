"""A minute of the campaign with a fixed seed, and shorter ones where one part is another."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.acceptance.campaign import site
from tests.acceptance.campaign.run import Plan, run


def _plan(directory: Path, seconds: float) -> Plan:
    return Plan(seed=1, seconds=seconds, directory=directory, faults_every=3, changes_every=2)


def _check(plan: Plan) -> None:
    report = run(plan)
    flaws = [line for flaw in report.flaws for line in report.describe(flaw)]
    assert not flaws, "\n".join([f"seed {plan.seed}, {plan.directory}", *flaws])
    assert set(report.numbers["matches"]) == set(site.BOUNDS), "pilots of all sites got jobs"


@pytest.mark.timeout(1800)
def test_every_job_ends_once_and_limits_hold_while_two_hosts_and_all_around_them_fail(
    short_directory: Path,
) -> None:
    (directory := short_directory / "campaign").mkdir()
    _check(_plan(directory, 60))


@pytest.mark.timeout(1200)
def test_every_job_ends_once_and_limits_hold_while_the_one_process_on_sqlite_fails(
    short_directory: Path,
) -> None:
    (directory := short_directory / "sqlite").mkdir()
    _check(replace(_plan(directory, 30), sqlite=True))


@pytest.mark.debian("pgbouncer")
@pytest.mark.timeout(1200)
def test_every_job_ends_once_and_limits_hold_behind_a_pooler_and_beside_the_next_release(
    short_directory: Path,
) -> None:
    (directory := short_directory / "pooler").mkdir()
    kinds = frozenset({"process killed", "matcher killed", "pooler restarted", "rolling upgrade"})
    _check(replace(_plan(directory, 15), pooler=True, minimal=True, kinds=kinds))


@pytest.mark.timeout(1200)
def test_every_job_ends_once_and_limits_hold_beside_a_service_of_the_last_release(
    short_directory: Path,
) -> None:
    (directory := short_directory / "earlier").mkdir()
    kinds = frozenset({"process killed", "all services killed", "network"})
    _check(replace(_plan(directory, 20), earlier=True, minimal=True, kinds=kinds))
