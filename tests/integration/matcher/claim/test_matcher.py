"""What a pilot gets: by what it presents, where it is, and who it speaks for."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import pytest
from sqlalchemy import Engine

from cs_config.errors import QueueNotFound
from cs_config.tree.address import QueueAddress
from matcher import demand
from matcher.claim import matcher as matching
from matcher.claim import prepare
from matcher.claim.claim_loop import StepwiseClaimer
from matcher.claim.claim_request import ClaimRequest, ClaimResult
from matcher.claim.matcher import Matcher
from matcher.claim.snapshot import MatcherCache
from matcher.request.match_request import MatchCaller, MatchRequest, NotServed
from requirements.errors import InvalidResource, PilotageError
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import FirstRequest
from taskqueue.schema.tables import match_requests
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueue
from tests.support import concurrency, databases
from tests.support.factories import queued_jobs, stored_rows, submitted_jobs
from tests.support.factories.queued_jobs import ELSEWHERE, LONG, at, request

POOL, OTHER_POOL = "a" * 64, "b" * 64
POOLED = replace(queued_jobs.EVERYWHERE, submit_pool=POOL)
CMS = MatchCaller(subject="cms-pilot", vos=frozenset({"cms"}))
BOUND = MatchCaller(subject="bound", vos=frozenset({"lhcb"}), queue=queued_jobs.LONG)


@pytest.fixture
def matcher(engine: Engine, now: datetime) -> Matcher:
    return queued_jobs.matcher(engine, now)


def _serve(matcher: Matcher, *batch: MatchRequest) -> list[list[int] | str]:
    """For each request the jobs, or the reason for none."""
    answers: list[list[int] | str] = []
    for each, look in zip(batch, matcher.serve(batch), strict=True):
        if isinstance(look, PilotageError):
            answers.append(type(look).__name__)
            continue
        given = matching.build_answer(each, look)
        answers.append(given.reason or [match.job_id for match in given.matches])
    return answers


def _one(matcher: Matcher, asked: MatchRequest) -> ClaimResult:
    [look] = matcher.serve([asked])
    if isinstance(look, PilotageError):
        raise look
    return look


# Getting work.


@pytest.mark.parametrize("count", [1, 2])
def test_the_lease_of_a_job_lasts_as_its_own_vo_says(engine: Engine, now: datetime, count: int) -> None:
    config = queued_jobs.grid(queued_jobs.GRID + "Operations: {cms: {Leases: {Time: 60}}}\n")
    matcher = queued_jobs.matcher(engine, now, config)
    queued_jobs.put(engine, now, asked=replace(queued_jobs.EVERYWHERE, vo="cms"), group="cms_user")
    queued_jobs.put(engine, now)
    both = MatchCaller(subject="gateway", vos=frozenset({"cms", "lhcb"}))
    asked = [request(caller=both, count=count, request_id=str(number)) for number in range(3 - count)]
    given = [match for each in matcher.serve(asked) for match in each.claimed]  # type: ignore[union-attr]
    assert {match.vo: match.lease_expires_at - now for match in given} == {
        "cms": timedelta(minutes=1),
        "lhcb": timedelta(minutes=5),
    }


def test_nothing_to_give_says_so_in_one_word(matcher: Matcher) -> None:
    asked = request(Foo=1, **at(queued_jobs.LONG))
    answer = matching.build_answer(asked, _one(matcher, asked))
    assert (answer.matches, answer.reason) == ((), "no_task_queue")
    assert len(answer.warnings) == 1


def test_a_job_that_comes_after_nothing_was_there_is_found(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    assert _serve(matcher, request()) == ["no_task_queue"]
    [job_id] = queued_jobs.put(engine, now)
    assert _serve(matcher, request()) == [[job_id]]
    assert _serve(matcher, request()) == ["no_task_queue"]
    [again] = queued_jobs.put(engine, now)
    assert _serve(matcher, request()) == [[again]]


def test_several_jobs_are_given_if_several_are_wanted(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    ids = queued_jobs.put(engine, now, 2) + queued_jobs.put(engine, now, 2, owner="bob")
    [look] = [_one(matcher, request(count=10))]
    assert sorted(match.job_id for match in look.claimed) == ids


def test_emptied_task_queues_do_not_hide_the_one_that_has_a_job(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    with database.writing(engine) as conn:
        ids = [
            queued_jobs.put(conn, now, asked=RequirementClass(vo="lhcb", cpu_time=1000 + number))[0]
            for number in range(300)
        ]
    matcher.refresh()
    keep = ids[123]
    with database.writing(engine) as conn:
        task_queues.dequeue(conn, [each for each in ids if each != keep])  # nobody tells the matcher
    assert _serve(matcher, request()) == [[keep]]


def test_task_queues_that_were_found_empty_are_not_tried_for_ever(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    with database.writing(engine) as conn:
        ids = [
            queued_jobs.put(conn, now, asked=RequirementClass(vo="lhcb", cpu_time=1000 + number))[0]
            for number in range(20)
        ]
        task_queues.dequeue(conn, ids)
    assert _one(matcher, request()) == ClaimResult()
    with database.reading(engine) as conn:
        assert queued_jobs.occupied(conn) == set(), "before nothing is answered, the feed is read again"


@pytest.mark.parametrize("position", [2, 4], ids=["directly", "by a query"])
def test_task_queues_found_empty_before_another_gave_a_job_are_excluded(
    engine: Engine, now: datetime, matcher: Matcher, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the direct tries; a query finds only those that have jobs."""

    def draw_in_order(candidates: Sequence[TaskQueue], *_: object) -> Iterator[TaskQueue]:
        return iter(sorted(candidates, key=attrgetter("task_queue_id")))

    monkeypatch.setattr(prepare, "draw_candidates", draw_in_order)
    with database.writing(engine) as conn:
        ids = [
            queued_jobs.put(conn, now, asked=RequirementClass(vo="lhcb", cpu_time=1000 + number))[0]
            for number in range(5)
        ]
        queues = [queued_jobs.task_queue_of(conn, each) for each in ids]
    matcher.refresh()
    gone = [each for number, each in enumerate(ids) if number != position]
    with database.writing(engine) as conn:
        task_queues.dequeue(conn, gone)  # nobody tells the matcher
    look = _one(matcher, request())
    assert [job.job_id for job in look.claimed] == [ids[position]]
    assert look.emptied >= {each for number, each in enumerate(queues) if number < position}


@pytest.mark.parametrize("fresh", [0.0, 60.0], ids=["just read", "of a moment ago"])
def test_nothing_is_answered_by_a_reading_that_begins_after_the_claim(
    engine: Engine, now: datetime, matcher: Matcher, fresh: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    [gone] = queued_jobs.put(engine, now)
    matcher.refresh()
    monkeypatch.setattr(matching, "_FRESH", fresh)
    claim, late = StepwiseClaimer.claim, list[int]()

    def claim_after_rival(
        claimer: StepwiseClaimer, requests: Sequence[ClaimRequest], *, now: datetime
    ) -> Any:
        """Between reading and claim the job is taken, and another one comes to another task queue."""
        if not late:
            with database.writing(engine) as conn:
                late.extend(queued_jobs.put(conn, now, owner="bob"))
                task_queues.dequeue(conn, [gone])
        return claim(claimer, requests, now=now)

    monkeypatch.setattr(StepwiseClaimer, "claim", claim_after_rival)
    assert _serve(matcher, request()) == [late]


def test_a_listing_brings_nothing_back_that_was_found_empty(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    with database.writing(engine) as conn:
        task_queues.dequeue(conn, queued_jobs.put(conn, now))
    asked = request()
    matcher.settle([_one(matcher, asked)])
    assert demand.get_matching_task_queues(matcher, asked.presented, asked.caller) == []
    assert not matcher._memory.waiting.excluded
    with database.reading(engine) as conn:
        assert queued_jobs.occupied(conn) == set()


def test_a_task_queue_that_only_seemed_empty_is_tried_again(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    with database.writing(engine) as conn:
        [first] = queued_jobs.put(conn, now)
        task_queues.dequeue(conn, [first])
    matcher.settle([_one(matcher, request())])
    # It is called occupied still: nobody is told of the new job.
    [second] = queued_jobs.put(engine, now)
    assert _serve(matcher, request()) == [[second]]


def test_idle_pilots_write_nothing(engine: Engine, now: datetime, matcher: Matcher) -> None:
    assert _serve(matcher, request(request_id="r1"), request(request_id="r2")) == ["no_task_queue"] * 2
    assert databases.count(engine, match_requests) == 0


def test_requests_that_find_empty_task_queues_leave_no_row(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    [job_id] = queued_jobs.put(engine, now)
    with database.writing(engine) as conn:
        task_queues.dequeue(conn, [job_id])
    assert _serve(matcher, request(request_id="r1")) == ["no_task_queue"]
    assert databases.count(engine, match_requests) == 0


def test_a_pilot_is_credited_with_its_jobs(engine: Engine, now: datetime, matcher: Matcher) -> None:
    queued_jobs.put(engine, now, 3)
    with database.writing(engine) as conn:
        pilots.bind_queues(
            conn, [FirstRequest(stamp="stamp", vo="lhcb", queue=queued_jobs.LONG, processors=2)], now=now
        )
    _serve(matcher, request(caller=MatchCaller(subject="p", vos=frozenset({"lhcb"}), stamp="stamp"), count=2))
    with database.reading(engine) as conn:
        assert pilots.get_pilot(conn, "stamp").jobs == 2


# The same request again.


def test_the_same_request_gets_the_same_jobs_within_the_lease(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    queued_jobs.put(engine, now, 3)
    first = _one(matcher, request(request_id="r", count=2)).claimed
    again = _one(matcher, request(request_id="r", count=2)).claimed
    elsewhere = _one(queued_jobs.matcher(engine, now), request(request_id="r", count=2)).claimed
    assert sorted(first, key=lambda each: each.job_id) == list(again) == list(elsewhere)


def test_the_same_request_twice_in_one_batch_is_one(engine: Engine, now: datetime, matcher: Matcher) -> None:
    queued_jobs.put(engine, now, 2)
    one, two = matcher.serve([request(request_id="r"), request(request_id="r")])
    assert one == two
    assert len(submitted_jobs.waiting(engine)) == 1


def test_a_request_id_belongs_to_its_subject(engine: Engine, now: datetime, matcher: Matcher) -> None:
    ids = queued_jobs.put(engine, now, 2)
    other = MatchCaller(subject="another pilot", vos=frozenset({"lhcb"}))
    answers = _serve(matcher, request(request_id="r"), request(request_id="r", caller=other))
    assert sorted(answers) == [[each] for each in ids]


def test_a_request_whose_jobs_went_back_gets_others(engine: Engine, now: datetime, matcher: Matcher) -> None:
    [job_id] = queued_jobs.put(engine, now)
    [match] = _one(matcher, request(request_id="r")).claimed
    queued_jobs.release(engine, now, match.lease)
    [again] = _one(matcher, request(request_id="r")).claimed
    assert (again.job_id, again.epoch) == (job_id, 2)
    assert again.lease != match.lease


@pytest.mark.parametrize("went_back", [False, True])
def test_the_same_request_at_two_matchers_at_once_claims_once(
    engine: Engine, now: datetime, *, went_back: bool
) -> None:
    queued_jobs.put(engine, now, 8)
    matchers = [queued_jobs.matcher(engine, now) for _ in range(4)]
    if went_back:
        [first] = _one(matchers[0], request(request_id="r")).claimed
        queued_jobs.release(engine, now, first.lease)

    def ask(number: int) -> tuple[int, ...]:
        return tuple(match.job_id for match in _one(matchers[number], request(request_id="r")).claimed)

    assert len(set(concurrency.at_once(4, ask))) == 1
    assert len(submitted_jobs.waiting(engine)) == 7


# A wrong request disturbs no other.


def test_a_wrong_request_in_a_batch_fails_alone(engine: Engine, now: datetime, matcher: Matcher) -> None:
    [job_id] = queued_jobs.put(engine, now)
    unknown = request(Site="A.B.ch", GridCE="ce1", Queue="lnog")
    assert _serve(matcher, unknown, request(**at(queued_jobs.LONG)), request(Queue="long")) == [
        "QueueNotFound",
        [job_id],
        "InvalidResource",
    ]


def test_what_the_pilot_stated_wrongly_is_told_with_a_suggestion(matcher: Matcher) -> None:
    with pytest.raises(QueueNotFound, match=r"did you mean A\.B\.ch/ce1/long"):
        _one(matcher, request(Site="A.B.ch", GridCE="ce1", Queue="lnog"))
    with pytest.raises(InvalidResource, match="without Site"):
        _one(matcher, request(Queue="long"))


# What a pilot presents: the current mapping of its queue, whatever list it brings.


@pytest.fixture
def pooled(engine: Engine, now: datetime) -> int:
    """A job of a pool that only the queues of CE ce1 at A.B.ch are eligible for."""
    queued_jobs.pool(engine, now, POOL, queued_jobs.LONG, config=queued_jobs.grid())
    return queued_jobs.put(engine, now, asked=POOLED)[0]


def test_the_pools_of_the_stated_queue_count_and_the_pilot_need_not_know_them(
    matcher: Matcher, pooled: int
) -> None:
    assert _serve(matcher, request(**at(queued_jobs.ELSEWHERE))) == ["no_task_queue"]
    assert _serve(matcher, request(**at(queued_jobs.SHORT))) == [[pooled]]


def test_an_invented_list_takes_no_job(matcher: Matcher, pooled: int) -> None:
    assert _serve(matcher, request(SubmitPool=POOL, **at(queued_jobs.ELSEWHERE))) == ["no_task_queue"]


def test_a_stale_list_neither_gives_nor_hides_a_job(
    engine: Engine, now: datetime, matcher: Matcher, pooled: int
) -> None:
    assert _serve(matcher, request(SubmitPool=OTHER_POOL, **at(queued_jobs.ELSEWHERE))) == ["no_task_queue"]
    queued_jobs.remap(engine, now, POOL, queued_jobs.ELSEWHERE, config=queued_jobs.grid())
    assert _serve(matcher, request(SubmitPool=POOL, **at(queued_jobs.LONG))) == ["no_task_queue"]
    assert _serve(matcher, request(SubmitPool=OTHER_POOL, **at(queued_jobs.ELSEWHERE))) == [[pooled]]


def test_a_mapping_that_changed_unseen_wastes_a_try_and_gives_no_wrong_job(
    engine: Engine, now: datetime, matcher: Matcher, pooled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher.refresh()
    _one(matcher, request(CPUTime=1, **at(queued_jobs.LONG)))  # remembers the pools of the queue
    queued_jobs.remap(engine, now, POOL, config=queued_jobs.grid())
    monkeypatch.setattr(MatcherCache, "follow", lambda _memory, _conn: 0)
    assert _serve(matcher, request(**at(queued_jobs.LONG))) == ["no_task_queue"]


def test_without_a_queue_the_stated_pools_count_where_the_site_has_an_eligible_queue(
    matcher: Matcher, pooled: int
) -> None:
    assert _serve(matcher, request(Site="A.B.ch")) == ["no_task_queue"], "it brings no list"
    assert _serve(matcher, request(Site="C.D.ch", SubmitPool=POOL)) == ["no_task_queue"]
    assert _serve(matcher, request(Site="A.B.ch", GridCE="ce2", SubmitPool=POOL)) == ["not_usable"]
    assert _serve(matcher, request(SubmitPool=POOL)) == ["no_task_queue"], "without a site no pool jobs"
    assert _serve(matcher, request(Site="ANY", SubmitPool=POOL)) == ["no_task_queue"]
    assert _serve(matcher, request(Site="A.B.ch", GridCE="ce1", SubmitPool=POOL)) == [[pooled]]


def test_jobs_without_requirements_need_no_pool(engine: Engine, now: datetime, matcher: Matcher) -> None:
    ids = queued_jobs.put(engine, now, 3)
    assert _serve(matcher, request(), request(Site="Un.Known.ch"), request(**at(queued_jobs.LONG))) == [
        [each] for each in ids
    ]


def test_the_site_of_a_known_queue_is_the_configurations(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    asked = replace(queued_jobs.EVERYWHERE, sites=frozenset({"C.D.ch"}), grid_ces=frozenset({"ce"}))
    [job_id] = queued_jobs.put(engine, now, asked=asked)
    assert _serve(matcher, request(**at(queued_jobs.LONG))) == ["no_task_queue"]
    assert _serve(matcher, request(**at(queued_jobs.ELSEWHERE))) == [[job_id]]


def test_a_token_that_is_bound_to_a_queue_speaks_for_no_other(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    [job_id] = queued_jobs.put(engine, now)
    with pytest.raises(NotServed, match=r"A\.B\.ch/ce1/long"):
        _one(matcher, request(caller=BOUND, **at(queued_jobs.SHORT)))
    assert _serve(matcher, request(caller=BOUND)) == [[job_id]], "its own need not be stated"


def test_a_bound_token_gets_the_pools_of_its_queue(matcher: Matcher, pooled: int) -> None:
    elsewhere = replace(BOUND, queue=queued_jobs.ELSEWHERE)
    assert _serve(matcher, request(caller=elsewhere, SubmitPool=POOL)) == ["no_task_queue"]
    assert _serve(matcher, request(caller=BOUND)) == [[pooled]]


def test_a_bound_queue_that_is_gone_from_the_configuration_is_unknown(matcher: Matcher) -> None:
    gone = replace(BOUND, queue=QueueAddress(site="A.B.ch", ce="ce1", queue="old"))
    with pytest.raises(QueueNotFound):
        _one(matcher, request(caller=gone))


def test_a_queue_that_is_shut_or_not_for_the_vo_gets_nothing(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    queued_jobs.put(engine, now)
    shut = QueueAddress(site="A.B.ch", ce="ce1", queue="shut")
    others = QueueAddress(site="A.B.ch", ce="ce2", queue="long")
    assert _serve(matcher, request(**at(shut)), request(**at(others))) == ["not_usable", "not_usable"]


# Who it speaks for.


def test_jobs_of_other_vos_are_never_given(engine: Engine, now: datetime, matcher: Matcher) -> None:
    [job_id] = queued_jobs.put(engine, now, asked=RequirementClass(vo="cms", cpu_time=1))
    assert _serve(matcher, request(**at(queued_jobs.LONG))) == ["no_task_queue"]
    assert _serve(matcher, request(caller=CMS, **at(queued_jobs.LONG))) == [[job_id]]


def test_a_vo_that_the_token_does_not_stand_for_is_refused(matcher: Matcher) -> None:
    with pytest.raises(NotServed, match="cms"):
        _one(matcher, request(VO="cms"))


def test_of_several_vos_the_stated_one_is_served(engine: Engine, now: datetime, matcher: Matcher) -> None:
    queued_jobs.put(engine, now)
    [of_cms] = queued_jobs.put(engine, now, asked=RequirementClass(vo="cms", cpu_time=1))
    both = MatchCaller(subject="gateway", vos=frozenset({"cms", "lhcb"}))
    assert _serve(matcher, request(caller=both, VO="CMS", **at(queued_jobs.LONG))) == [[of_cms]]


def test_a_pool_of_another_vo_does_not_count(engine: Engine, now: datetime, matcher: Matcher) -> None:
    queued_jobs.pool(engine, now, POOL, queued_jobs.LONG, config=queued_jobs.grid(), vo="cms")
    queued_jobs.put(engine, now, asked=POOLED)  # cannot be: a pool belongs to one VO
    assert _serve(matcher, request(Site="A.B.ch", SubmitPool=POOL)) == ["no_task_queue"]
    assert _serve(matcher, request(**at(queued_jobs.LONG))) == ["no_task_queue"]


def test_owner_groups_and_owners_limit_what_is_given(engine: Engine, now: datetime, matcher: Matcher) -> None:
    [of_alice] = queued_jobs.put(engine, now)
    [of_bob] = queued_jobs.put(engine, now, owner="bob", group="lhcb_prod")
    assert _serve(matcher, request(OwnerGroup="lhcb_none")) == ["no_task_queue"]
    assert _serve(matcher, request(Owner="carol", OwnerGroup="lhcb_user")) == ["no_task_queue"]
    assert _serve(matcher, request(Owner="carol", OwnerGroup="lhcb_prod")) == [[of_bob]], "they share"
    assert _serve(matcher, request(OwnerGroup=["lhcb_user"], Owner="Alice")) == [[of_alice]]


# Pools of queues.


def test_the_pools_of_queues_are_those_they_are_eligible_for(
    engine: Engine, now: datetime, matcher: Matcher, pooled: int
) -> None:
    found = matcher.get_submit_pools(frozenset({"lhcb"}), [LONG, ELSEWHERE])
    assert found == {LONG: [POOL], ELSEWHERE: []}
    assert matcher.get_submit_pools(frozenset({"lhcb"}), []) == {}
    assert matcher.get_submit_pools(frozenset({"cms"}), [LONG]) == {LONG: []}, "one sees those of one's VOs"


# Task queues that a resource may serve.


def test_a_director_learns_what_waits_for_a_queue(
    engine: Engine, now: datetime, matcher: Matcher, pooled: int
) -> None:
    ids = queued_jobs.put(engine, now, 150)
    queued_jobs.put(engine, now, asked=replace(queued_jobs.EVERYWHERE, cpu_time=10**8))
    here = request(**at(queued_jobs.LONG))
    found = demand.get_matching_task_queues(matcher, here.presented, here.caller)
    by_pool = {each.task_queue.requirement_class.submit_pool: each for each in found}
    assert by_pool.keys() == {None, POOL}
    assert (by_pool[None].waiting, by_pool[None].job_ids) == (150, tuple(ids[:100]))
    assert (by_pool[POOL].waiting, by_pool[POOL].job_ids) == (1, (pooled,))
    elsewhere = request(**at(queued_jobs.ELSEWHERE))
    assert len(demand.get_matching_task_queues(matcher, elsewhere.presented, elsewhere.caller)) == 1


def test_emptied_task_queues_are_not_listed(engine: Engine, now: datetime, matcher: Matcher) -> None:
    [job_id] = queued_jobs.put(engine, now)
    stored_rows.kill(engine, now, job_id)
    asked = request()
    assert demand.get_matching_task_queues(matcher, asked.presented, asked.caller) == []


def test_a_change_that_could_not_be_looked_at_comes_again(
    engine: Engine, now: datetime, matcher: Matcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher.refresh()
    [job_id] = queued_jobs.put(engine, now)

    def away(*_: object) -> list[task_queues.TaskQueue]:
        raise ConnectionError("in the middle of reading what changed")

    with monkeypatch.context() as broken:
        broken.setattr(task_queues, "read_occupied", away)
        with pytest.raises(ConnectionError):
            matcher.refresh()
    assert _serve(matcher, request()) == [[job_id]]
