"""Typical mistakes on a real grid: every explanation names the mistake and the change that helps."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from agents import wait_times
from cs_config.tree.configuration import Configuration
from matcher.limits.compiled_rules import RuleFollower
from pilotage.service.services import utc_now
from tests.support.service import Service, running

Json = Mapping[str, Any]
JOB = {"Executable": "/bin/true"}


@pytest.fixture
def service(engine: Engine, tmp_path: Path, osg: Configuration) -> Iterator[Service]:
    with running(engine, tmp_path, osg.source) as service:
        yield service


def requirements(found: Json) -> set[str]:
    return {reason["requirement"] for reason in found["reasons"]}


def helps(found: Json, *words: str) -> Json:
    """The change that is told in these words; it must gain something."""
    told = [each for each in found["changes"] if all(word in each["change"] for word in words)]
    assert told, found["changes"]
    assert all(each["gains"] > 0 for each in told)
    return dict(told[0])


#: What was said, the requirement that is named, words of the change that helps, and the change as made.
MISTAKES: list[tuple[Json, str, tuple[str, ...], Json]] = [
    (
        {"Requirements": {"SoftwareTag": "AppVersio1"}},
        "SoftwareTag",
        ("write SoftwareTag AppVersion1 instead of AppVersio1",),
        {"Requirements": {"SoftwareTag": "AppVersion1"}},
    ),
    (
        {"Requirements": {"SofwareTag": "AppVersion1"}},
        "SofwareTag",
        ("write SoftwareTag instead of SofwareTag",),
        {"Requirements": {"SoftwareTag": "AppVersion1"}},
    ),
    (
        {"Requirements": {"CPUModel": "intel xenon"}},
        "CPUModel",
        ("write CPUModel Intel Xeon instead",),
        {"Requirements": {"CPUModel": "Intel Xeon"}},
    ),
    (
        {"Requirements": {"Memory": 4_000_000}},
        "Memory",
        ("lower Memory from 4000000 to 2000",),
        {"Requirements": {"Memory": 2000}},
    ),
    ({"Requirements": {"OS": "windows"}}, "OS", ("allow OS rhel8",), {"Requirements": {"OS": "rhel8"}}),
    ({"Requirements": {"Country": "Germany"}}, "Country", ("leave out Country",), {}),
    (
        {"Requirements": {"Country": "CHE", "Memory": 4000}},
        "Country",
        ("write Country CH instead of CHE",),
        {"Requirements": {"Country": "CH", "Memory": 4000}},
    ),
    (
        {"Requirements": 'other.Country == "DE" && other.MaxRAM > 4000000'},
        "Requirements",
        ("write `other.MaxRAM >= 15800`", "instead of `other.MaxRAM > 4000000`"),
        {"Requirements": 'other.Country == "DE" && other.MaxRAM >= 15800'},
    ),
    ({"Requirements": "other.GPUz > 1"}, "Requirements", ("leave out `other.GPUz > 1`",), {}),
    (
        {"Requirements": 'member("AppVersion1", other.SofwareTag)'},
        "Requirements",
        ("write other.SoftwareTag instead of other.SofwareTag",),
        {"Requirements": 'member("AppVersion1", other.SoftwareTag)'},
    ),
    (
        {"Requirements": 'other.CPUModel == "Intel Xenon" && other.MaxRAM > 2000'},
        "Requirements",
        ('write `other.CPUModel == "Intel Xeon"` instead',),
        {"Requirements": 'other.CPUModel == "Intel Xeon" && other.MaxRAM > 2000'},
    ),
    (
        {"Requirements": 'other.CPUModel =?= "intel xeon"'},
        "Requirements",
        ('write `other.CPUModel =?= "Intel Xeon"` instead',),
        {"Requirements": 'other.CPUModel =?= "Intel Xeon"'},
    ),
    (
        {"Requirements": 'other.MaxRAM > "4000"'},
        "Requirements",
        ("write `other.MaxRAM > 4000` instead",),
        {"Requirements": "other.MaxRAM > 4000"},
    ),
    (
        {"Requirements": "other.MaxRAM > 8000 && other.MaxRAM < 4000"},
        "Requirements",
        ("leave out `other.MaxRAM < 4000`",),
        {"Requirements": "other.MaxRAM > 8000"},
    ),
    ({"Tags": ["gpu"]}, "Tags", ("leave out the tag gpu",), {}),
    ({"Tags": ["gpu"], "Site": "OSG.CERN.ch"}, "Tags", ("leave out the tag gpu",), {"Site": "OSG.CERN.ch"}),
    (
        {"Site": "OSG.CRN.ch"},
        "Site",
        ("write Site OSG.CERN.ch instead of OSG.CRN.ch",),
        {"Site": "OSG.CERN.ch"},
    ),
    (
        {"Site": ["OSG.CERN.ch"], "GridCE": "ce01.brazos.tamu.edu"},
        "GridCE",
        ("allow GridCE ce503.cern.ch as well",),
        {"Site": ["OSG.CERN.ch"], "GridCE": ["ce01.brazos.tamu.edu", "ce503.cern.ch"]},
    ),
    (
        {"Site": "OSG.CERN.ch", "Requirements": {"CPUModel": "AMD EPYC"}},
        "CPUModel",
        ("allow CPUModel Intel Xeon as well",),
        {"Site": "OSG.CERN.ch", "Requirements": {"CPUModel": ["AMD EPYC", "Intel Xeon"]}},
    ),
    (
        {"CPUTime": 500_000, "Site": "OSG.CERN.ch"},
        "CPUTime",
        ("lower CPUTime from 518400 to 86400",),
        {"CPUTime": 86_400, "Site": "OSG.CERN.ch"},
    ),
    (
        {"NumberOfProcessors": 1000},
        "NumberOfProcessors",
        ("lower NumberOfProcessors from 1000 to 8",),
        {"NumberOfProcessors": 8},
    ),
    ({"GPUs": 64}, "GPUs", ("lower GPUs from 64 to 0",), {}),
    (
        {"WholeNode": True, "Requirements": {"Memory": 1000}},
        "WholeNode",
        ("do without WholeNode",),
        {"Requirements": {"Memory": 1000}},
    ),
    (
        {"BannedSites": ["OSG.CERN.ch", "OSG.KIT.de"], "Requirements": {"SoftwareTag": "AppVersion2"}},
        "BannedSites",
        ("take OSG.CERN.ch off BannedSites",),
        {"BannedSites": ["OSG.KIT.de"], "Requirements": {"SoftwareTag": "AppVersion2"}},
    ),
    (
        {"Requirements": {"SofwareTag": "AppVersion1", "Memory": 4_000_000}},
        "Memory",
        ("lower Memory from 4000000 to 2000", "write SoftwareTag instead of SofwareTag"),
        {"Requirements": {"SoftwareTag": "AppVersion1", "Memory": 2000}},
    ),
]


def test_typical_mistakes_are_named_and_the_change_that_is_told_gains_what_is_promised(service: Service):
    user = service.user()

    def foreseen(said: Json) -> Json:
        return dict(user.post("/api/v1/explain", json={"jobs": [{**JOB, **said}]}).json())

    for said, requirement, words, mended in MISTAKES:
        found = foreseen(said)
        assert (found["job_id"], found["eligible_queues"], found["candidate_queues"]) == (None, 0, 210), said
        assert requirement in requirements(found), said
        told = helps(found, *words)
        assert foreseen(mended)["eligible_queues"] == told["gains"], (said, told)
        assert any("no eligible queue" in each for each in found["now"])


def test_the_explanation_of_a_submitted_job_is_that_of_its_description(service: Service):
    user = service.user()
    jobs = [{**JOB, **said} for said, *_ in MISTAKES]
    ids = user.post("/api/v1/jobs", json={"jobs": jobs}).json()["job_ids"]
    for job_id, job in zip(ids, jobs, strict=True):
        found = user.post("/api/v1/explain", json={"jobs": [job]}).json()
        again = explained(user, job_id)
        assert (again["reasons"], again["changes"]) == (found["reasons"], found["changes"])


#: What the submission refuses, and words of the message.
REFUSED: list[tuple[Json, tuple[str, ...]]] = [
    ({"Requirements": {"Memory": "4 GB"}}, ("Memory", "'4 GB'", "number of MB")),
    ({"Requirements": "other.MaxRAM >"}, ("Requirements",)),
    ({"CPUTime": 5_000_000}, ("CPUTime", "5000000", "at most 500000")),
    ({"CPUTime": "long"}, ("CPUTime", "long", "whole number")),
    ({"MinNumberOfProcessors": 8, "MaxNumberOfProcessors": 4}, ("MinNumberOfProcessors", "8", "4")),
    ({"MinRAM": 8000, "MaxRAM": 4000}, ("MinRAM", "8000", "MaxRAM", "4000")),
    ({"CPUTme": 3600}, ("CPUTme", "did you mean CPUTime")),
    ({"Requirements": {"Memory": -1}}, ("Memory", "-1", "at least 1")),
]


def test_what_a_description_alone_shows_to_be_wrong_is_refused_with_what_is_allowed(service: Service):
    user = service.user()
    for said, words in REFUSED:
        answers = [
            user.post(path, json={"jobs": [{**JOB, **said}]}) for path in ("/api/v1/jobs", "/api/v1/explain")
        ]
        for answer in answers:
            assert answer.status_code == 400, said
            message = answer.json()["error"]["message"]
            assert all(word in message for word in words), message
    assert user.post("/api/v1/explain", json={"jobs": [JOB, JOB]}).status_code == 400, "one at a time"


def test_a_vo_without_rights_is_told_so(service: Service):
    user = service.user(vo="icecube")
    found = user.post("/api/v1/explain", json={"jobs": [{**JOB, "Site": "OSG.CERN.ch"}]}).json()
    assert found["eligible_queues"] == 0
    assert {"VO", "Site"} <= requirements(found)
    helps(found, "admit the VO icecube")
    helps(found, "leave out Site")


def test_a_vo_that_no_queue_is_for_has_no_candidates(service: Service):
    found = service.user(vo="nobody").post("/api/v1/explain", json={"jobs": [JOB]}).json()
    assert (found["eligible_queues"], found["candidate_queues"]) == (0, 0)
    assert "VO" in requirements(found)
    assert "its VO may use no queue that is switched on" in found["now"]


def test_a_platform_that_no_queue_knows_is_named(service: Service):
    found = service.user().post("/api/v1/explain", json={"jobs": [{**JOB, "Platform": "el99"}]}).json()
    assert held(found, "no queue offers the Platform el99", "leave out Platform")
    assert held(found, "no queue states that it has Platform el99", "194 eligible ones")


def test_memory_that_no_queue_says_to_have_is_named(service: Service):
    found = service.user().post("/api/v1/explain", json={"jobs": [{**JOB, "MinRAM": 4_000_000}]}).json()
    [memory] = [reason for reason in found["reasons"] if reason["requirement"] == "MinRAM"]
    assert memory["only_this"] > 100
    helps(found, "lower MinRAM from 4000000 to")
    assert any("no queue states that it has 4000000 MB" in each for each in found["now"])


def test_an_unknown_site_is_named_with_the_one_that_was_meant(service: Service):
    found = service.user().post("/api/v1/explain", json={"jobs": [{**JOB, "Site": "OSG.CRN.ch"}]}).json()
    assert any("has no site OSG.CRN.ch" in each and "OSG.CERN.ch" in each for each in found["now"])


def test_a_job_that_the_optimizers_failed_is_explained_from_its_description(service: Service):
    user = service.user()
    said = {**JOB, "Site": "OSG.CERN.ch", "Requirements": {"Memory": 4_000_000}, "JobPath": ["NoSuchStep"]}
    [job_id] = user.post("/api/v1/jobs", json={"jobs": [said]}).json()["job_ids"]
    found = user.get(f"/api/v1/jobs/{job_id}/explain").json()
    assert found["status"] == "Failed"
    assert {"Site", "Memory"} <= requirements(found)
    assert found["eligible_queues"] == 0


def test_a_job_that_waits_says_that_no_pilot_came_and_who_comes_before_it(service: Service):
    user = service.user()
    first, second = user.post("/api/v1/jobs", json={"jobs": [JOB, JOB]}).json()["job_ids"]
    assert user.get(f"/api/v1/jobs/{first}/explain").json()["now"] == [
        "no pilot of an eligible queue has requested work in the last 15 minutes"
    ]
    found = user.get(f"/api/v1/jobs/{second}/explain").json()
    assert "1 of the 2 jobs of its task queue is handed out before it" in found["now"]


def test_a_job_of_a_later_tier_names_the_types_that_come_before_it(service: Service, osg: Configuration):
    service.configure(limited(osg, "JobScheduling: {JobPriorities: [MC, '{WG: 2, Fast: 1}', Merge]}"))

    def told(job_type: str) -> list[str]:
        now = (
            service.user()
            .post("/api/v1/explain", json={"jobs": [{**JOB, "JobType": job_type}]})
            .json()["now"]
        )
        return [each for each in now if "JobPriorities" in each]

    before = "of what a pilot can run, jobs of MC, {WG: 2, Fast: 1}"
    assert told("MC") == []
    assert told("fast") == [
        (
            "its type, fast, is in tier 2 of 3, {WG: 2, Fast: 1}: of what a pilot can run, jobs of MC come "
            "before it (JobPriorities)"
        )
    ]
    assert told("Merge") == [
        f"its type, Merge, is in tier 3 of 3, Merge: {before} come before it (JobPriorities)"
    ]
    assert told("User") == [
        f"its type, User, is in no tier, after all 3: {before}, Merge come before it (JobPriorities)"
    ]


def test_a_queue_says_what_it_serves_and_what_it_could_offer(service: Service):
    user, ligo = service.user(), service.user(vo="ligo")
    queue = "OSG.CERN.ch/ce503.cern.ch/CMSHTPC_T2_CH_CERN_ce503"
    jobs = [JOB, JOB, {**JOB, "NumberOfProcessors": 64}, {**JOB, "Requirements": {"CPUModel": "AMD EPYC"}}]
    ids = user.post("/api/v1/jobs", json={"jobs": jobs}).json()["job_ids"]
    ligo.post("/api/v1/jobs", json={"jobs": [JOB] * 5})
    found = service.operator().get(f"/api/v1/resources/queues/{queue}/explain").json()
    assert found["serves"] == {"cms": {"jobs": 2, "classes": 1}}
    assert {vo: work["jobs"] for vo, work in found["waiting"].items()} == {"cms": 4, "ligo": 5}
    lost = {each["requirement"]: each for each in found["reasons"]}
    assert (lost["VO"]["jobs"], lost["VO"]["only_this"]) == (5, 5)
    assert lost["NumberOfProcessors"]["example"] == {"vo": "cms", "job_id": ids[2], "wanted": "at least 64"}
    assert (lost["CPUModel"]["has"], lost["CPUModel"]["only_this"]) == ("Intel Xeon", 1)
    offers = {each["offer"]: each["gains"] for each in found["changes"]}
    assert offers["admit the VO ligo"] == 5
    assert offers["offer NumberOfProcessors 64"] == 1
    assert offers["offer CPUModel AMD EPYC"] == 1
    assert list(offers.values()) == sorted(offers.values(), reverse=True)

    own = user.get(f"/api/v1/resources/queues/{queue}/explain").json()
    assert set(own["waiting"]) == {"cms"}
    site = service.as_role("site_admin", site="OSG.CERN.ch", user="sam")
    seen = site.get(f"/api/v1/resources/queues/{queue}/explain").json()
    assert set(seen["waiting"]) == {"cms", "ligo"}
    assert {each["example"]["job_id"] for each in seen["reasons"]} == {None}


def test_a_queue_says_what_is_closed_above_it(service: Service, osg: Configuration):
    text = limited(osg, "JobScheduling: {RunningLimit: {OSG.CERN.ch: {JobType: {Merge: 0, MC: 5}}}}")
    throttle = "      Throttle: {Policy: simple, MaxJobs: 0, Stale: derived}\n"
    configure_counted(service, text.replace("    OSG.CERN.ch:\n", "    OSG.CERN.ch:\n" + throttle, 1))
    operator = service.operator()
    operator.post("/api/v1/sites/OSG.CERN.ch/ban", json={"reason": "storage is down"})
    service.user().post("/api/v1/jobs", json={"jobs": [JOB]})
    queue = "OSG.CERN.ch/ce503.cern.ch/CMSHTPC_T2_CH_CERN_ce503"
    found = operator.get(f"/api/v1/resources/queues/{queue}/explain").json()
    assert held(found, "OSG.CERN.ch is banned", "storage is down")
    assert held(found, "has 0 jobs with JobType Merge, its RunningLimit is 0")
    assert held(found, "OSG.CERN.ch is throttled (CurrentJobs 0 ≥ MaxJobs 0)")
    assert held(found, "no pilots of cms requested jobs here")
    assert not any("MC" in each for each in found["now"])


def test_a_queue_that_does_not_exist_has_a_suggestion(service: Service):
    queue = "OSG.CERN.ch/ce503.cern.ch/CMSHTPC_T2_CH_CERN_ce504"
    answer = service.user().get(f"/api/v1/resources/queues/{queue}/explain")
    assert answer.status_code == 404
    assert answer.json()["error"]["details"]["did_you_mean"]


def test_a_throttled_site_is_named_with_its_counters(service: Service, osg: Configuration):
    throttle = "      Throttle: {Policy: level0, MaxSubmittingJobs: 0, Stale: open}\n"
    service.configure(osg.source.replace("    OSG.CERN.ch:\n", "    OSG.CERN.ch:\n" + throttle))
    user = service.user()
    found = user.post("/api/v1/explain", json={"jobs": [{**JOB, "Site": "OSG.CERN.ch"}]}).json()
    assert found["eligible_queues"] == 23
    closed = osg.source.replace(
        "    OSG.CERN.ch:\n", "    OSG.CERN.ch:\n" + throttle.replace("open", "closed")
    )
    service.configure(closed)
    found = user.post("/api/v1/explain", json={"jobs": [{**JOB, "Site": "OSG.CERN.ch"}]}).json()
    assert "OSG.CERN.ch is throttled (no fresh advertisement)" in found["now"]
    assert "all 23 eligible queues take no job like it now" in found["now"]
    assert found["headline"].endswith(" fit, but OSG.CERN.ch is throttled (no fresh advertisement).")
    assert (found["is_held"], found["open_queues"]) == (True, 0)
    for change in found["changes"]:
        assert change["gains"] >= change["open_now"] > 0


def held(found: Json, *words: str) -> str:
    """The line of what holds a job now that has these words."""
    [told] = [each for each in found["now"] if all(word in each for word in words)]
    return str(told)


def test_a_banned_site_is_named_with_its_reason_but_not_to_tests(service: Service):
    operator, user = service.operator(), service.user()
    until = "2099-01-01T00:00:00+00:00"
    body = {"reason": "storage is down", "until": until}
    assert operator.post("/api/v1/sites/OSG.CERN.ch/ban", json=body).status_code == 200
    job = {**JOB, "Site": "OSG.CERN.ch"}
    [job_id] = user.post("/api/v1/jobs", json={"jobs": [job]}).json()["job_ids"]
    found = user.get(f"/api/v1/jobs/{job_id}/explain").json()
    assert held(found, "OSG.CERN.ch is banned until 2099-01-01 00:00 UTC", "storage is down")
    assert held(found, "all 23 eligible queues")
    test = user.post("/api/v1/explain", json={"jobs": [{**job, "JobType": "Test"}]}).json()
    assert not any("banned" in each for each in test["now"])
    operator.post("/api/v1/sites/OSG.CERN.ch/allow")
    again = user.get(f"/api/v1/jobs/{job_id}/explain").json()
    assert not any("banned" in each for each in again["now"])


def limited(osg: Configuration, options: str) -> str:
    return osg.source.replace(
        "\nOperations:\n  Defaults:\n", f"\nOperations:\n  Defaults:\n    {options}\n", 1
    )


def configure_counted(service: Service, text: str) -> None:
    """Set a configuration, and wait until what runs is counted for its limits."""
    service.configure(text)
    follower = RuleFollower(service.engine)
    while not follower.follow(service.parts.live.current):
        pass


def test_a_running_limit_is_named_with_what_is_there(service: Service, osg: Configuration):
    configure_counted(
        service,
        limited(
            osg, "JobScheduling: {RunningLimit: {OSG.CERN.ch: {JobType: {Merge: 0}, OwnerGroup: {x: 0}}}}"
        ),
    )
    user = service.user()
    job = {**JOB, "JobType": "Merge"}
    found = user.post("/api/v1/explain", json={"jobs": [job]}).json()
    assert held(found, "OSG.CERN.ch has 0 jobs with JobType Merge, its RunningLimit is 0")
    assert held(found, f"23 of the {found['eligible_queues']} eligible queues take no job like it now")
    other = user.post("/api/v1/explain", json={"jobs": [JOB]}).json()
    assert not any("RunningLimit" in each for each in other["now"])


def test_a_limit_on_cores_is_named_where_only_a_smaller_slot_would_pass_it(
    service: Service, osg: Configuration
):
    configure_counted(
        service, limited(osg, "JobScheduling: {RunningLimit: {OSG.CERN.ch: {JobType: {Merge: {cores: 4}}}}}")
    )
    user = service.user()
    sizes = {"MinNumberOfProcessors": 1, "MaxNumberOfProcessors": 6}
    job = {**JOB, "JobType": "Merge", "Site": "OSG.CERN.ch"}
    found = user.post("/api/v1/explain", json={"jobs": [{**job, **sizes}]}).json()
    assert held(found, "JobType Merge", "the 6 cores that a free pilot there that asks for one job gives it")
    found = user.post("/api/v1/explain", json={"jobs": [{**job, "WholeNode": True}]}).json()
    assert held(found, "has 0 jobs and 0 cores with JobType Merge", "not enough for the", "it needs there")
    for other in (job, {**job, **sizes, "MaxNumberOfProcessors": 4}, {**job, **sizes, "JobType": "Other"}):
        found = user.post("/api/v1/explain", json={"jobs": [other]}).json()
        assert not any("RunningLimit" in each for each in found["now"])


def test_a_limit_of_the_whole_grid_is_named_at_every_queue(service: Service, osg: Configuration):
    configure_counted(
        service,
        limited(osg, "JobScheduling: {RunningLimit: {AllSites: {JobType: {Merge: 0}, JobGroup: {x: 0}}}}"),
    )
    user = service.user()
    found = user.post("/api/v1/explain", json={"jobs": [{**JOB, "JobType": "Merge"}]}).json()
    assert held(found, "AllSites has 0 jobs with JobType Merge, its RunningLimit is 0")
    assert held(found, f"all {found['eligible_queues']} eligible queues take no job like it now")
    queue = "OSG.CERN.ch/ce503.cern.ch/CMSHTPC_T2_CH_CERN_ce503"
    at_queue = user.get(f"/api/v1/resources/queues/{queue}/explain").json()
    assert held(at_queue, "AllSites has 0 jobs with JobType Merge")


def test_a_matching_delay_is_named_with_the_seconds_that_are_left(service: Service, osg: Configuration):
    service.configure(limited(osg, "JobScheduling: {MatchingDelay: {OSG.CERN.ch: {VO: {cms: 3600}}}}"))
    user = service.user()
    job = {**JOB, "Site": "OSG.CERN.ch"}
    ids = user.post("/api/v1/jobs", json={"jobs": [job, job]}).json()["job_ids"]
    assert not any("MatchingDelay" in each for each in explained(user, ids[1])["now"])
    place = {"Site": "OSG.CERN.ch", "GridCE": "ce503.cern.ch", "Queue": "CMSHTPC_T2_CH_CERN_ce503"}
    taken = service.pilot().post("/api/v1/matcher/requestJob", json={**place, "CPUTime": 10**6}).json()
    assert len(taken["matches"]) == 1
    [left] = {*ids} - {match["job_id"] for match in taken["matches"]}
    told = held(explained(user, left), "OSG.CERN.ch takes a job with VO cms every 3600 s (MatchingDelay)")
    assert 3500 < int(told.split()[-2]) <= 3600


def explained(user: Any, job_id: int) -> Json:
    return dict(user.get(f"/api/v1/jobs/{job_id}/explain").json())


def test_the_time_waited_is_told_by_cause(service: Service):
    user = service.user()
    [job_id] = user.post("/api/v1/jobs", json={"jobs": [JOB]}).json()["job_ids"]
    assert set(user.get(f"/api/v1/jobs/{job_id}").json()["waited"]) <= {"optimizers", "a pilot"}
    user.post(f"/api/v1/jobs/{job_id}/kill")
    wait_times.cycle(
        service.engine,
        now=utc_now() + timedelta(minutes=3),
        holder="test",
        memory=wait_times.WaitTimesState(),
    )
    [row] = user.get("/api/v1/jobs/summary?by=status").json()["summary"]
    assert (row["status"], row["count"]) == ("Killed", 1)
    assert row["waited"].keys() == user.get(f"/api/v1/jobs/{job_id}").json()["waited"].keys()


def test_a_job_for_somebody_else_is_refused_with_whose_it_may_be(service: Service):
    for said, yours in (({"OwnerGroup": "cms_prodution"}, "cms_user"), ({"VO": "atlas"}, "cms")):
        answer = service.user().post("/api/v1/explain", json={"jobs": [{**JOB, **said}]})
        assert answer.status_code == 403
        assert f"yours is '{yours}'" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("number", "told"), [(4, False), (5, True)])
def test_more_mistakes_than_changes_are_sought_for_are_said_to_be(service: Service, number: int, told: bool):
    asked = {f"Nonsense{each}": each for each in range(number)}
    body = {"jobs": [{**JOB, "Requirements": asked}]}
    found = service.user().post("/api/v1/explain", json=body).json()
    assert bool(found["changes"]) is not told
    said = ["changes of more than 4 requirements at once; none of fewer helps"]
    assert found["left_out"] == (said if told else [])
