"""Of whose jobs each role is told, and how much."""

from datetime import UTC, datetime, timedelta

import pytest

from cs_config.versions.store import NOTHING
from pilotage.service import configuring
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller, Role, grant, union
from pilotage.service.models.jobs import JobFilter
from requirements.states import PilotStatus
from taskqueue.jobs.search import Period
from taskqueue.ownership import OwnershipFilter
from taskqueue.pilots.pilots import Pilot

CMS, DUNE = frozenset({"cms"}), frozenset({"dune"})
A, B = frozenset({"A.org"}), frozenset({"B.org"})


def caller(role: str, **wishes: str) -> Caller:
    return grant(role=role, **wishes).caller  # type: ignore[arg-type]


def bearer(*several: Caller) -> Caller:
    made = union(several)
    assert made is not None
    return made


ADA = caller("user", vo="cms", user="ada")
EVE = caller("vo_admin", vo="cms", user="eve")
SAM = caller("site_admin", site="A.org", user="sam")
SAM_OF_CMS = caller("site_admin", site="A.org", vo="cms", user="sam")
OWN, ALL_OF_CMS, AT_A = (
    OwnershipFilter(vos=CMS, owner="ada"),
    OwnershipFilter(vos=CMS),
    OwnershipFilter(sites=A),
)
CMS_AT_A = OwnershipFilter(vos=CMS, sites=A)


@pytest.mark.parametrize(
    ("who", "controlled", "named", "counted"),
    [
        (ADA, [OWN], [OWN], [OWN]),
        (EVE, [ALL_OF_CMS], [ALL_OF_CMS], [ALL_OF_CMS]),
        (SAM, [], [], [AT_A]),
        (SAM_OF_CMS, [], [CMS_AT_A], [AT_A]),
        (caller("gateway", site="A.org", vo="cms"), [], [CMS_AT_A], [CMS_AT_A]),
        (caller("director", vo="cms"), [], [ALL_OF_CMS], [ALL_OF_CMS]),
        (caller("pilot", vo="cms"), [], [], []),
        (caller("operator", vo="cms"), [OwnershipFilter()], [OwnershipFilter()], [OwnershipFilter()]),
        (bearer(EVE, SAM, ADA), [ALL_OF_CMS], [ALL_OF_CMS], [ALL_OF_CMS, AT_A]),
        (
            bearer(ADA, caller("vo_admin", vo="dune", user="ada")),
            [OWN, OwnershipFilter(vos=DUNE)],
            None,
            None,
        ),
        (bearer(ADA, caller("operator")), [OwnershipFilter()], [OwnershipFilter()], [OwnershipFilter()]),
    ],
    ids=lambda each: "-".join(one.role for one in each.each) if isinstance(each, Caller) else "",
)
def test_each_role_is_told_of_its_own(
    who: Caller,
    controlled: list[OwnershipFilter],
    named: list[OwnershipFilter] | None,
    counted: list[OwnershipFilter] | None,
):
    assert list(visibility.controlled(who)) == controlled
    assert list(visibility.may_see_names(who)) == (controlled if named is None else named)
    assert list(visibility.may_count(who)) == (controlled if counted is None else counted)


def test_who_looks_after_a_site_hears_of_every_vo_there_but_not_by_name():
    assert visibility.vos_at(SAM, "A.org") is None
    assert visibility.vos_at(SAM, "B.org") == frozenset()
    assert not visibility.may_see_names_of(SAM, vo="cms", owner="ada", site="A.org")
    assert visibility.may_see_names_of(SAM_OF_CMS, vo="cms", owner="ada", site="A.org")
    assert not visibility.may_see_names_of(SAM_OF_CMS, vo="cms", owner="ada", site="B.org")
    assert not visibility.controls(SAM_OF_CMS, vo="cms", owner="ada")


def test_a_bearer_with_several_roles_may_what_any_of_them_may():
    everything = bearer(ADA, caller("vo_admin", vo="dune", user="ada"), SAM)
    assert everything.visible_vos == CMS | DUNE
    assert everything.looks_after("A.org")
    of_configuration = configuring.rights_of(everything, NOTHING.registry)
    assert (of_configuration.vos, of_configuration.sites) == (DUNE, A)
    as_admin = everything.within({Role.SITE_ADMIN, Role.VO_ADMIN})
    assert as_admin is not None
    assert [one.role for one in as_admin.each] == [Role.VO_ADMIN, Role.SITE_ADMIN]
    assert everything.within({Role.PILOT}) is None


def test_what_is_asked_for_narrows_what_is_ones_own():
    assert AT_A.narrow(vos=CMS) == CMS_AT_A
    assert AT_A.narrow(sites=B).sites == frozenset()
    assert OWN.narrow(owner="ada") == OWN
    assert OWN.narrow(owner="bob").vos == frozenset()


def test_ages_in_a_filter_of_jobs_are_counted_from_the_time_that_is_given() -> None:
    now = datetime(2026, 3, 28, 12, tzinfo=UTC)
    wanted = JobFilter.model_validate({"submitted_since": "24h", "submitted_before": "30m"})
    for which in (
        visibility.visible_jobs(ADA, wanted, now=now),
        visibility.countable(ADA, wanted, ("status",), now=now),
    ):
        day_ago, lately = now - timedelta(hours=24), now - timedelta(minutes=30)
        assert which.periods == {"submitted_at": Period(since=day_ago, before=lately)}


def test_a_user_with_a_role_in_another_vo_has_no_pilots_of_the_own() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    pilot = Pilot(
        stamp="s1", vo="cms", status=PilotStatus.RUNNING, status_reason="", site="B.org", ce="ce", queue="q",
        reference=None, submitted_by="", jobs=0, created_at=now, updated_at=now, last_seen_at=None,
    )  # fmt: skip
    of_dune = caller("vo_admin", vo="dune", user="ada")
    assert not visibility.has_pilot(bearer(of_dune, ADA), pilot)
    assert not visibility.has_pilot(ADA, pilot)
    assert visibility.has_pilot(bearer(ADA, EVE), pilot)
