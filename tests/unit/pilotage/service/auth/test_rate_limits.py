import asyncio
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.options import bounds
from pilotage.service.auth import rate_limits
from pilotage.service.auth.rate_limits import (
    Bounds,
    Limiter,
    Patience,
    RateLimiter,
    RequestRate,
)
from pilotage.service.http_errors import TooManyRequests

RATE = RequestRate(per_second=2, burst=4)


def drained() -> RateLimiter:
    """One of which Ada has just made a burst of requests."""
    limiter = RateLimiter()
    for _ in range(4):
        limiter.take("ada", RATE, now=100.0)
    return limiter


def any_waits(limiter: Limiter) -> bool:
    """Whether a limiter keeps anything of requests that wait."""
    return bool(limiter._turns or limiter._ready or limiter._held_back)


def test_a_burst_passes_and_the_next_request_waits():
    limiter = drained()
    with pytest.raises(TooManyRequests) as refused:
        limiter.take("ada", RATE, now=100.0)
    assert refused.value.retry_after == 1


def test_what_an_admitted_request_cost_is_owed_up_to_a_burst():
    limiter = RateLimiter()
    limiter.take("ada", RATE, now=100.0, cost=0)
    limiter.add("ada", 1000)
    assert limiter.collect() == {"ada": 1000}, "other processes count it, too"
    with pytest.raises(TooManyRequests, match="too many jobs, try again in 3 s"):
        limiter.take("ada", RATE, now=100.0, cost=0, what="jobs")
    limiter.take("ada", RATE, now=102.5, cost=0)


def test_tokens_come_back_with_time_but_never_more_than_a_burst():
    limiter = drained()
    limiter.take("ada", RATE, now=100.5)
    for _ in range(4):
        limiter.take("ada", RATE, now=10_000.0)
    with pytest.raises(TooManyRequests):
        limiter.take("ada", RATE, now=10_000.0)


def test_a_clock_that_goes_back_gives_nothing_away():
    limiter = drained()
    with pytest.raises(TooManyRequests):
        limiter.take("ada", RATE, now=50.0)


def test_busy_callers_are_forgotten_with_their_buckets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate_limits, "_REMEMBERED", 2)
    limiter = RateLimiter()  # `collect` is called where there is Redis
    for number in range(5):
        limiter.take(f"pilot {number}", RATE, now=100.0)
        limiter.add(f"pilot {number}", 10)
    assert limiter._busy == {"pilot 3", "pilot 4"}


def test_a_check_takes_nothing():
    limiter = drained()
    with pytest.raises(TooManyRequests):
        limiter.take("ada", RATE, now=100.0, cost=0)
    limiter.take("bob", RATE, now=100.0, cost=0)
    for _ in range(4):
        limiter.take("bob", RATE, now=100.0)


def test_few_requests_of_a_subject_work_at_a_time_some_wait_and_more_are_refused():
    limiter = Limiter(Bounds(of_one=2, waiting=3))
    working: list[str] = []
    most: list[int] = []
    refused: list[str] = []

    async def request(subject: str, end: asyncio.Event) -> None:
        try:
            async with limiter.place("", subject):
                working.append(subject)
                most.append(working.count("ada"))
                await end.wait()
                working.remove(subject)
        except TooManyRequests:
            refused.append(subject)

    async def run() -> None:
        end = asyncio.Event()
        tasks = [asyncio.create_task(request("ada", end)) for _ in range(7)]
        tasks.append(asyncio.create_task(request("bob", end)))
        while len(refused) < 2 or "bob" not in working:
            await asyncio.sleep(0)
        tasks[0].cancel()  # a client that goes away makes room
        end.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with limiter.place("", "ada"):
            assert limiter.under_way["subject", "ada"] == 1

    asyncio.run(run())
    assert max(most) == 2
    assert refused == ["ada", "ada"]
    assert not limiter.under_way
    assert not any_waits(limiter)


def test_vos_and_the_callers_of_each_get_places_in_turn_and_a_vo_has_only_some() -> None:
    places = Limiter(Bounds(of_all=3, of_vo=2))
    order: list[str] = []

    async def work(name: str, end: asyncio.Event) -> None:
        async with places.place(name[0], name[:2]):
            order.append(name)
            await end.wait()

    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def go() -> None:
        ends = {name: asyncio.Event() for name in ("a1x", "a1y", "a1z", "a2x", "b1x", "b1y", "c1x", "d1x")}
        tasks = {name: asyncio.create_task(work(name, end)) for name, end in ends.items()}
        await settle()
        assert order == ["a1x", "a1y", "b1x"], "one place is kept from the VO that has two"
        tasks["c1x"].cancel()  # a client that goes away is left out
        for name, next_one in {"b1x": "b1y", "a1x": "d1x", "d1x": "a1z", "a1y": "a2x"}.items():
            ends[name].set()
            await settle()
            assert order[-1] == next_one, name
        for end in ends.values():
            end.set()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    asyncio.run(go())
    assert len(order) == 7
    assert not any_waits(places)
    assert not places.under_way


def test_a_subject_has_only_some_places_of_all_vos_together() -> None:
    places = Limiter(Bounds(of_all=8, of_vo=4, of_one=2))
    order: list[str] = []

    async def work(vo: str, site: str, end: asyncio.Event) -> None:
        async with places.place(vo, site):
            order.append(f"{vo} at {site}")
            await end.wait()

    async def go() -> None:
        end = asyncio.Event()
        wanted = [
            ("a", "X"),
            ("a", "X"),
            ("a", "X"),
            ("b", "X"),
            ("a", "Y"),
            ("a", "Z"),
            ("a", "Z"),
            ("b", "Y"),
        ]
        tasks = [asyncio.create_task(work(*each, end)) for each in wanted]
        for _ in range(20):
            await asyncio.sleep(0)
        assert order == ["a at X", "a at X", "a at Y", "a at Z", "b at Y"]
        end.set()
        await asyncio.gather(*tasks)

    asyncio.run(go())
    assert len(order) == 8
    assert not any_waits(places)
    assert not places.under_way


def test_a_place_costs_as_much_with_a_thousand_callers_that_have_all_of_theirs() -> None:
    looked_at: list[str] = []

    class Watched(Counter[tuple[str, str]]):
        def __getitem__(self, holder: tuple[str, str]) -> int:
            looked_at.append(holder[1])
            return super().__getitem__(holder)

    async def go() -> None:
        limiter, end = Limiter(Bounds(of_one=1)), asyncio.Event()

        async def work(name: str) -> None:
            async with limiter.place("a", name):
                await end.wait()

        tasks = [asyncio.create_task(work(f"ada {number}")) for number in range(1_000) for _ in range(2)]
        while len(limiter._held_back) < 1_000:
            await asyncio.sleep(0)
        limiter.under_way = Watched(limiter.under_way)
        async with limiter.place("a", "bob"):
            pass
        assert 0 < len(looked_at) < 50
        tasks[1].cancel()  # while it is held back
        end.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not any_waits(limiter)

    asyncio.run(go())


def test_however_many_vos_hold_what_they_may_there_is_room_for_the_next() -> None:
    limiter = Limiter(Bounds(of_all=64, is_halved=True))
    holds = list[int]()
    with ExitStack() as held:
        for vo in range(6):
            holds.append(0)
            while limiter.find_full(f"vo {vo}", "ada") is None:
                held.enter_context(limiter.keep(f"vo {vo}", "ada", 1))
                holds[vo] += 1
    assert holds == [32, 16, 8, 4, 2, 1]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.booleans()), min_size=1, max_size=60
    ),
    is_halved=st.booleans(),
)
def test_no_place_is_free_that_a_waiting_request_may_have(
    steps: list[tuple[str, str, bool]], *, is_halved: bool
) -> None:
    bounds = Bounds(of_all=6, of_vo=4, of_one=2, is_halved=is_halved)

    async def go() -> None:
        limiter, tasks = Limiter(bounds), dict[asyncio.Task[None], tuple[str, str]]()
        at_work: dict[asyncio.Task[None], asyncio.Event] = {}

        async def work(vo: str, subject: str) -> None:
            task = asyncio.current_task()
            assert task is not None
            async with limiter.place(vo, subject):
                at_work[task] = asyncio.Event()
                await at_work[task].wait()
                del at_work[task]

        for vo, subject, ends in steps:
            if ends and tasks:
                task = next(iter(tasks))
                del tasks[task]
                if task in at_work:
                    at_work[task].set()
                else:
                    task.cancel()
            else:
                tasks[asyncio.create_task(work(vo, subject))] = vo, subject
            for _ in range(4):
                await asyncio.sleep(0)
            assert limiter.under_way["all", ""] == len(at_work) <= 6
            for task, (its_vo, its_subject) in tasks.items():
                assert task in at_work or limiter.find_full(its_vo, its_subject) is not None
        while tasks:
            task, _ = tasks.popitem()
            task.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert not any_waits(limiter)

    asyncio.run(go())


def test_bodies_are_held_up_to_a_number_of_bytes_of_one_of_a_vo_and_of_all() -> None:
    limiter = Limiter(Bounds(what="large requests", of_all=10, of_vo=6, of_one=4))
    with ExitStack() as held:
        ada = held.enter_context(limiter.hold("a", "ada"))
        ada(1)
        ada(3)
        with pytest.raises(TooManyRequests, match="too many large requests"):
            ada(1)
        with limiter.hold("a", "bob") as bob:
            bob(2)
            with pytest.raises(TooManyRequests):
                bob(1)
        held.enter_context(limiter.hold("b", "bea"))(4)
        dan = held.enter_context(limiter.hold("d", "dan"))
        dan(2)
        with pytest.raises(TooManyRequests):
            dan(1)
    assert not limiter.under_way


def test_answers_count_whole_and_are_refused_when_one_a_vo_or_all_hold_enough() -> None:
    limiter = Limiter(Bounds(what="unread answers", of_all=10, of_vo=6, of_one=4))
    with ExitStack() as held:
        limiter.require_room("a", "ada")
        held.enter_context(limiter.keep("a", "ada", 3))
        limiter.require_room("a", "ada")
        with limiter.keep("a", "ada", 100):
            for vo, subject in (("a", "ada"), ("a", "bob"), ("b", "bea")):
                with pytest.raises(TooManyRequests, match="too many unread answers, try again in 1 s"):
                    limiter.require_room(vo, subject)
        held.enter_context(limiter.keep("a", "bob", 3))
        with pytest.raises(TooManyRequests):
            limiter.require_room("a", "cy")
        limiter.require_room("b", "bea")
        held.enter_context(limiter.keep("b", "bea", 4))
        with pytest.raises(TooManyRequests):
            limiter.require_room("d", "dan")
    assert not limiter.under_way


def test_a_client_may_pause_and_has_to_reach_the_least_rate_over_a_time() -> None:
    steady = Patience(60)
    for _ in range(10_000):
        steady.note(size=bounds.SLOWEST, waited=1.0)
    assert steady.seconds == 60
    fast = Patience(60)
    fast.note(size=10**9, waited=1.0)
    assert fast.seconds == 60  # what came fast saves up no longer pause
    trickling = Patience(60)
    for _ in range(62):
        trickling.note(size=1, waited=1.0)
    assert trickling.seconds < 0
    assert Patience(60, 1000).seconds == 60


def test_who_is_judged_alone_is_refused_for_its_own_unread_answers_only() -> None:
    limiter = Limiter(Bounds(what="unread answers", of_all=10, of_vo=6, of_one=4))
    with limiter.keep("a", "ada", 100):
        limiter.require_room("a", "pilot", is_alone=True)
        with limiter.keep("a", "pilot", 4), pytest.raises(TooManyRequests):
            limiter.require_room("a", "pilot", is_alone=True)
