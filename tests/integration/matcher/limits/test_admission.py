"""What a queue asks of jobs holds when they are handed out, and keeps no job from another queue."""

from collections.abc import Mapping
from datetime import datetime

import pytest
from sqlalchemy import Engine

from cs_config.tree.address import QueueAddress
from matcher import demand
from matcher.claim.claim_request import ClaimResult
from matcher.request import match_request
from matcher.request.match_request import MatchCaller
from taskqueue.db import database
from tests.support.factories import queued_jobs

TREE = """
Resources:
  Sites:
    A.x:
      VO: [lhcb, cms]
      CEs:
        ce:
          OfCe: 1000
          Queues:
            open: {}
            vo:
              AuthorizationCheck: member(strcat("VO:", other.VirtualOrganisation), Allowed)
              Allowed: ['VO:cms']
            alice: {Requirements: 'other.Owner == "alice" || TARGET.OwnerGroup == "lhcb_prod"'}
            short: {Requirements: other.CPUTime < OfCe && self.OfCe == 1000}
            close:
              CloseOutputSECheck: IsUndefined(other.OutputSE) || member(other.OutputSE, CloseSE)
              CloseSE: [disk]
            mine: {Checks: [Mine, Absent], Mine: other.Number == 7, AuthorizationCheck: 'false'}
            type: {Requirements: 'other.JobType == "Test"', VOs: {cms: {Requirements: null}}}
            never: {Requirements: other.NoSuch > 1}
    B.x: {CEs: {ce: {Queues: {q: {}}}}}
"""
CONFIG = queued_jobs.grid(TREE)


def queue(name: str) -> QueueAddress:
    return QueueAddress(site="A.x", ce="ce", queue=name)


def put(engine: Engine, now: datetime, count: int = 1, owner: str = "alice", **body: object) -> list[int]:
    return queued_jobs.put(engine, now, count, owner=owner, body={"Executable": "x", **body})


def ask(engine: Engine, now: datetime, name: str, count: int = 1, **said: object) -> ClaimResult:
    matcher = queued_jobs.matcher(engine, now, CONFIG)
    return queued_jobs.serve(
        matcher, queued_jobs.request(count=count, **{**queued_jobs.at(queue(name)), **said})
    )


def given(engine: Engine, now: datetime, name: str, count: int = 1, **said: object) -> list[int]:
    look = ask(engine, now, name, count, **said)
    assert look.claimed or not look.in_other_hands
    return [each.job_id for each in look.claimed]


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("open", True),
        ("vo", False),
        ("alice", True),
        ("short", True),
        ("close", True),
        ("mine", False),
        ("type", False),
        ("never", False),
    ],
)
def test_a_queue_gets_what_it_admits_only(engine: Engine, now: datetime, name: str, fits: bool) -> None:
    job = put(engine, now, CPUTime=500, OutputSE=["disk"])
    assert given(engine, now, name) == (job if fits else [])


@pytest.mark.parametrize(
    ("name", "owner", "body", "fits"),
    [
        ("alice", "bob", {}, False),
        ("short", "bob", {"CPUTime": 1000}, False),
        ("short", "bob", {"CPUTime": "text"}, False),
        ("close", "bob", {"OutputSE": ["tape"]}, False),
        ("close", "bob", {}, True),
        ("mine", "bob", {"Number": 7}, True),
        ("mine", "bob", {"Number": "7"}, False),
    ],
)
def test_it_is_the_jobs_own_description_that_counts(
    engine: Engine, now: datetime, name: str, owner: str, body: Mapping[str, object], fits: bool
) -> None:
    job = put(engine, now, owner=owner, **body)
    assert given(engine, now, name) == (job if fits else [])
    assert given(engine, now, "open") == ([] if fits else job)


def test_a_fitting_job_is_found_among_those_that_are_refused(engine: Engine, now: datetime) -> None:
    put(engine, now, 250, CPUTime=5000)
    fitting = put(engine, now, 3, CPUTime=100)
    put(engine, now, 250, CPUTime=6000)
    assert sorted(given(engine, now, "short", count=10)) == fitting
    assert given(engine, now, "short") == []


def test_what_fills_the_placeholders_of_a_job_counts(engine: Engine, now: datetime) -> None:
    jobs = []
    with database.writing(engine) as conn:
        for number in ("6", "7", "8"):
            filled = {"n": number}
            body = {"Executable": "x", "Arguments": "%n", "CPUTime": "%n"}
            jobs += queued_jobs.put(conn, now, body=body, parameters=filled)
    tree = TREE.replace("other.Number == 7", 'other.Arguments == "7"')
    matcher = queued_jobs.matcher(engine, now, queued_jobs.grid(tree))
    look = queued_jobs.serve(matcher, queued_jobs.request(count=5, **queued_jobs.at(queue("mine"))))
    assert [each.job_id for each in look.claimed] == [jobs[1]]


def test_a_listing_shows_only_task_queues_with_jobs_that_are_admitted(engine: Engine, now: datetime) -> None:
    put(engine, now, owner="bob", CPUTime=5000)
    put(engine, now, owner="alice", CPUTime=500)

    def owners(name: str) -> list[str]:
        matcher = queued_jobs.matcher(engine, now, CONFIG)
        said = match_request.read_resource({"CPUTime": 10**7, **queued_jobs.at(queue(name))})
        caller = MatchCaller(subject="pilot", vos=frozenset({"lhcb"}))
        return sorted(
            each.task_queue.owner for each in demand.get_matching_task_queues(matcher, said, caller)
        )

    assert owners("open") == ["alice", "bob"]
    assert owners("alice") == owners("short") == ["alice"]
    assert owners("never") == []


def test_who_states_a_site_only_gets_what_every_queue_there_admits(engine: Engine, now: datetime) -> None:
    job = put(engine, now, CPUTime=500)
    assert given(engine, now, "open", Queue=None, GridCE=None) == []
    matcher = queued_jobs.matcher(engine, now, CONFIG)
    look = queued_jobs.serve(matcher, queued_jobs.request(Site="B.x"))
    assert [each.job_id for each in look.claimed] == job


def test_a_job_that_is_named_has_to_be_admitted_too(engine: Engine, now: datetime) -> None:
    refused, fitting = put(engine, now, CPUTime=5000) + put(engine, now, CPUTime=500)
    assert given(engine, now, "short", JobID=refused) == []
    assert given(engine, now, "short", JobID=fitting) == [fitting]


def test_jobs_in_the_hands_of_another_are_worth_another_look(postgresql: Engine, now: datetime) -> None:
    [job] = put(postgresql, now, CPUTime=500)
    with database.writing(postgresql) as conn:
        queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, job)], now)
        assert ask(postgresql, now, "short").in_other_hands
