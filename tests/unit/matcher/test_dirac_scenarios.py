"""How resources meet jobs in DIRAC: facts of its TaskQueueDB, with its defects put right."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from matcher import conditions, rules
from matcher.index.requirement_class_index import ClassIndex
from matcher.request import match_request
from requirements.errors import InvalidResource
from requirements.requirement_class import RequirementClass, round_to_segment
from requirements.resource import Exclusion, Resource
from requirements.values import fold
from tests.support.factories import scenarios

_DATA = scenarios.load("match_scenarios.yaml")
_SEGMENTS = (
    *(360, 1_800, 3_600, 21_600, 43_200, 86_400, 172_800, 259_200, 345_600),
    *(518_400, 691_200, 864_000, 1_080_000),
)
_FIELDS = {"Site": "sites", "JobType": "job_types", "Owner": "owners", "OwnerGroup": "owner_groups"}


def _class_of(job: Mapping[str, Any]) -> RequirementClass:
    return RequirementClass(
        vo="vo",
        cpu_time=round_to_segment(job.get("CPUTime", 5000), _SEGMENTS),
        sites=frozenset(job.get("Sites", ())),
        banned_sites=frozenset(job.get("BannedSites", ())),
        grid_ces=frozenset(job.get("GridCEs", ())),
        platforms=frozenset(job.get("Platforms", ())),
        job_types=frozenset(job.get("JobTypes", ())),
        tags=frozenset(job.get("Tags", ())),
        min_ram=job.get("MinRAM", 0),
        max_ram=job.get("MaxRAM"),
    )


def _resource(scenario: Mapping[str, Any]) -> Resource:
    resource = match_request.read_resource(scenario["resource"]).resource
    said = scenario.get("negative_condition", [])
    return replace(
        resource,
        excluded=frozenset(_exclusion(each) for each in (said if isinstance(said, list) else [said])),
        sharing_groups=frozenset(map(fold, scenario.get("groups_with_JobSharing", ()))),
    )


def _exclusion(said: Mapping[str, list[str]]) -> Exclusion:
    return frozenset((_FIELDS[name], rules.fold_names(values)) for name, values in said.items())


def _served(scenario: Mapping[str, Any]) -> Iterator[int]:
    """The jobs that rules and index agree on."""
    resource = _resource(scenario)
    jobs = _DATA["jobs"][scenario["jobs"]]
    index = ClassIndex()
    for job_id, job in jobs.items():
        index.add(job_id, _class_of(job))
    found = set(index.classes(index.mask(resource, frozenset())))
    for job_id, job in jobs.items():
        asked = _class_of(job)
        fits = not conditions.refusals(asked, resource, frozenset())
        assert fits == (job_id in found), "index and rules differ"
        owner, group = job.get("Owner", "userName"), job.get("OwnerGroup", "myGroup")
        if fits and rules.owner_fits(asked, owner, group, resource):
            yield job_id


@pytest.mark.parametrize("scenario", _DATA["scenarios"], ids=lambda each: each["name"])
def test_a_resource_is_served_the_jobs_that_dirac_serves_it(scenario: Mapping[str, Any]) -> None:
    if scenario["expect"] == "error":
        with pytest.raises(InvalidResource):
            match_request.read_resource(scenario["resource"])
    else:
        assert sorted(_served(scenario)) == scenario["expect"]


def test_where_we_differ_from_dirac_the_difference_is_on_purpose() -> None:
    defects = {each["name"] for each in _DATA["scenarios"] if "dirac" in each}
    assert defects == {
        "resource-banned-site-list-is-or",
        "requiredtag-key-present-but-empty-no-tag-key",
        "negative-list-of-dicts-is-or",
        "owner-with-two-groups-precedence-bug",
        "bannedsites-list-passes-if-one-not-banned",
    }
