"""Tiers of job types, as requests get them: in the event loop, step by step, with limits, for several VOs."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import Engine, select

from cs_config.tree.configuration import Configuration
from matcher.claim.claim_request import ClaimResult
from matcher.request.match_request import MatchCaller, MatchRequest, MatchResult
from taskqueue.db import database
from taskqueue.schema.tables import jobs
from tests.support.claimers import claiming, run
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import LONG, at, request

_TIERS = "[MC, '{WG: 3, Fast: 1}', Merge]"


def _config(of_lhcb: str) -> Configuration:
    return queued_jobs.grid(f"{queued_jobs.GRID}Operations: {{lhcb: {{JobScheduling: {{{of_lhcb}}}}}}}\n")


def _put(engine: Engine, now: datetime, vo: str = "lhcb", **counts: int) -> None:
    """Put waiting jobs by type; `MC_4`: each needs four cores."""
    with database.writing(engine) as conn:
        for name, count in counts.items():
            job_type, _, cores = name.partition("_")
            asked = replace(
                queued_jobs.EVERYWHERE,
                vo=vo,
                job_types=frozenset({job_type}),
                processors_min=int(cores or 1),
                processors_max=int(cores or 1),
            )
            queued_jobs.put(conn, now, count, asked=asked, owner=job_type, job_type=job_type)


def _ask(*vos: str, **said: object) -> MatchRequest:
    caller = MatchCaller(subject="pilot", vos=frozenset(vos or ("lhcb",)))
    return request(**{"caller": caller, **at(LONG), **said})


def _types(engine: Engine, answers: Sequence[ClaimResult | MatchResult]) -> list[str]:
    ids = [
        job.job_id
        for each in answers
        for job in (each.claimed if isinstance(each, ClaimResult) else each.matches)
    ]
    with database.reading(engine) as conn:
        types = {row.job_id: row.job_type for row in conn.execute(select(jobs.c.job_id, jobs.c.job_type))}
    return [types[each] for each in ids]


def test_jobs_come_tier_by_tier_and_unlisted_types_last(engine: Engine, now: datetime) -> None:
    _put(engine, now, User=2, Merge=2, WG=2, MC=3)
    matcher = queued_jobs.matcher(engine, now, _config(f"JobPriorities: {_TIERS}"))
    given = _types(engine, [queued_jobs.serve(matcher, _ask()) for _ in range(9)])
    assert given == ["MC"] * 3 + ["WG"] * 2 + ["Merge"] * 2 + ["User"] * 2


def test_requests_in_the_event_loop_keep_the_tiers(postgresql: Engine, now: datetime) -> None:
    _put(postgresql, now, User=30, Merge=5, MC=5)
    with claiming(
        postgresql, queued_jobs.matcher(postgresql, now, _config(f"JobPriorities: {_TIERS}"))
    ) as process:

        async def work() -> list[MatchResult]:
            answers = [await process.ask(_ask())]
            for _ in range(3):
                answers += await asyncio.gather(*(process.ask(_ask()) for _ in range(4)))
            return answers

        given = _types(postgresql, run(work, process))
    assert Counter(given) == {"MC": 5, "Merge": 5, "User": 3}
    assert given[:5] == ["MC"] * 5
    assert process.in_loop >= 10


def test_a_job_of_an_earlier_tier_that_comes_later_is_before_those_that_wait(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, Merge=3)
    matcher = queued_jobs.matcher(engine, now, _config(f"JobPriorities: {_TIERS}"))
    answers = [queued_jobs.serve(matcher, _ask())]
    _put(engine, now, MC=1)
    matcher.refresh()
    answers += [queued_jobs.serve(matcher, _ask()) for _ in range(2)]
    assert _types(engine, answers) == ["Merge", "MC", "Merge"]


def test_a_type_that_a_pilot_cannot_run_gives_way(engine: Engine, now: datetime) -> None:
    _put(engine, now, MC_4=2, Merge=2)
    matcher = queued_jobs.matcher(engine, now, _config(f"JobPriorities: {_TIERS}"))
    small = queued_jobs.serve(matcher, _ask(NumberOfProcessors=2))
    large = queued_jobs.serve(matcher, _ask(NumberOfProcessors=4))
    assert _types(engine, [small, large]) == ["Merge", "MC"]


def test_several_jobs_of_one_request_come_tier_by_tier_while_they_fit(engine: Engine, now: datetime) -> None:
    _put(engine, now, MC_4=3, WG_2=2, Merge=4)
    matcher = queued_jobs.matcher(engine, now, _config(f"JobPriorities: {_TIERS}"))
    answer = queued_jobs.serve(matcher, _ask(NumberOfProcessors=11, count=20))
    assert _types(engine, [answer]) == ["MC", "MC", "WG", "Merge"]


@pytest.mark.parametrize("limit", ["2", "{count: 2}", "{cores: 2}", "{count: 9, cores: 2}"])
def test_a_type_at_its_limit_gives_way_and_comes_first_again_afterwards(
    engine: Engine, now: datetime, limit: str
) -> None:
    _put(engine, now, MC=9, Merge=9)
    limits = f"RunningLimit: {{A.B.ch: {{JobType: {{MC: {limit}}}}}}}"
    matcher = queued_jobs.matcher(engine, now, _config(f"JobPriorities: {_TIERS}, {limits}"))
    answers = [queued_jobs.serve(matcher, _ask(NumberOfProcessors=1)) for _ in range(4)]
    assert _types(engine, answers) == ["MC", "MC", "Merge", "Merge"]
    queued_jobs.release(engine, now, answers[0].claimed[0].lease)
    assert _types(engine, [queued_jobs.serve(matcher, _ask(NumberOfProcessors=1))]) == ["MC"]


def test_in_the_event_loop_a_type_at_its_limit_gives_way(postgresql: Engine, now: datetime) -> None:
    _put(postgresql, now, MC=40, Merge=40)
    limits = "RunningLimit: {A.B.ch: {JobType: {MC: {count: 30, cores: 7}}}}"
    config = _config(f"JobPriorities: {_TIERS}, {limits}")
    with claiming(postgresql, queued_jobs.matcher(postgresql, now, config)) as process:

        async def work() -> list[MatchResult]:
            answers = [await process.ask(_ask())]
            return answers + await asyncio.gather(*(process.ask(_ask()) for _ in range(19)))

        given = _types(postgresql, run(work, process))
    assert Counter(given) == {"MC": 7, "Merge": 13}


def test_each_vo_has_its_own_tiers_and_its_turns_as_without_them(engine: Engine, now: datetime) -> None:
    for vo in ("lhcb", "cms"):
        _put(engine, now, vo, Merge=20, MC=20)
    matcher = queued_jobs.matcher(engine, now, _config("JobPriorities: [MC, Merge]"))
    answers = [queued_jobs.serve(matcher, _ask("lhcb", "cms")) for _ in range(40)]
    vos = [job.vo for each in answers for job in each.claimed]
    of_lhcb = [name for name, vo in zip(_types(engine, answers), vos, strict=True) if vo == "lhcb"]
    of_cms = [name for name, vo in zip(_types(engine, answers), vos, strict=True) if vo == "cms"]
    assert of_lhcb == sorted(of_lhcb, key=["MC", "Merge"].index), "its tiers"
    assert of_cms != sorted(of_cms, key=["MC", "Merge"].index), "its lottery"
    assert {"lhcb", "cms"} == set(vos[:20])
