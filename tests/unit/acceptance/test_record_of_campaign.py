"""The checks of the campaign find what must not happen, and nothing else."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.acceptance.campaign import checks, record
from tests.acceptance.campaign.record import (
    GATHERING,
    POLLING,
    SUBMITTING,
    Advert,
    Bounds,
    Held,
    History,
    Step,
    Truth,
)

SITE = "S"


def matched(job_id: int, kind: str = "Merge", site: str = SITE) -> Step:
    return Step(job_id=job_id, to_status="Matched", site=site, kind=kind)


def gone(job_id: int, to_status: str = "Done") -> Step:
    return Step(job_id=job_id, to_status=to_status, site=SITE, kind="Merge")


def running(job_id: int) -> Step:
    return gone(job_id, "Running")


def flaws_of_limit(*steps: Step, most: int = 2) -> list[str]:
    return list(record.over_the_limit(steps, SITE, "Merge", most))


def test_a_limit_that_was_overshot_is_told() -> None:
    assert flaws_of_limit(matched(1), matched(2), running(1), matched(3)) == [
        "S: 3 jobs of the type Merge with job 3, allowed are 2"
    ]


def test_who_has_left_is_elsewhere_or_is_of_another_kind_does_not_count() -> None:
    others = [matched(4, kind="User"), matched(5, site="T")]
    for end in ("Done", "Failed", "Killed", "Rescheduled", "Waiting"):
        assert not flaws_of_limit(matched(1), matched(2), *others, gone(1, end), matched(3))
    assert flaws_of_limit(matched(1), matched(2), gone(1, "Stalled"), matched(3))


def test_the_most_at_once_is_told() -> None:
    steps = [matched(1), matched(2), gone(1), matched(3), gone(2), gone(3)]
    assert max(number for _, number in record.crowd(steps, SITE, "Merge")) == 2


def test_more_at_the_site_than_it_allows_is_told() -> None:
    truth = Truth(Bounds(jobs=2, submitting=1))
    truth.put("a", SUBMITTING)
    truth.go_on("a", POLLING)
    truth.put("b", SUBMITTING)
    assert not list(record.over_the_throttle(SITE, truth))
    truth.put("c", SUBMITTING)
    for lease in "abc":
        truth.leave(lease)
    truth.go_on("c", GATHERING)
    found = [flaw.partition("; ") for flaw in record.over_the_throttle(SITE, truth)]
    assert [flaw for flaw, _, _ in found] == [
        "S: 3 jobs at once, allowed are 2",
        "S: 2 submitting at once, allowed are 1",
    ]
    assert all(there.endswith("a polling, b submitting, c submitting") for _, _, there in found)
    assert truth.count() == 0


def test_a_job_that_its_site_has_ended_is_not_there_though_its_pilot_is_late() -> None:
    truth = Truth(Bounds(jobs=1))
    truth.put("a", SUBMITTING, until=0.0)
    truth.put("b", SUBMITTING)
    truth.prolong("a", record.NEVER)
    truth.go_on("a", POLLING)
    assert not list(record.over_the_throttle(SITE, truth))
    truth.put("c", SUBMITTING, until=record.NEVER)
    assert list(record.over_the_throttle(SITE, truth))


def test_matches_that_came_faster_than_the_tokens_are_told() -> None:
    def fast(*times: float) -> list[str]:
        return list(record.too_fast([held(1, at) for at in times], seconds=0.5, burst=3))

    assert not fast(0, 0, 0)
    assert not fast(0, 0, 0, 0.1), "the token may have come before its answer"
    assert not fast(0, 0, 0, 0.5, 1.0, 10, 10, 10)
    assert fast(0, 0, 0, 0, 0)
    assert fast(*(10 + 0.1 * number for number in range(20)))


def held(number: int, asked: float, *, start: float = record.NEVER, nth: int = 0) -> Held:
    return Held(
        lease=f"l{number}",
        job_id=number,
        site=SITE,
        asked=asked,
        answered=asked + 0.5,
        start_sent=start,
        nth=nth,
    )


def advert(sent: float, busy: int, *, listed: tuple[str, ...] = (), sure: bool = True) -> Advert:
    return Advert(
        scope=SITE,
        sent=sent,
        answered=sent + 0.5,
        contained=sent - 1,
        busy=busy,
        listed=frozenset(listed),
        sure=sure,
    )


def closed(helds: list[Held], *adverts: Advert, most: int = 2) -> list[str]:
    return list(record.matched_while_closed(helds, adverts, SITE, most))


def test_a_match_at_a_closed_site_is_told() -> None:
    two = [held(1, 1), held(2, 2)]
    assert not closed(two, advert(0, 0))
    assert closed([*two, held(3, 3)], advert(0, 0)) == [
        "S: job 3 was matched while 2 were busy, allowed are 2"
    ]
    assert closed([held(1, 1)], advert(0, 2))
    assert closed([held(1, 1), held(2, 1, nth=1), held(3, 1, nth=2)], advert(0, 0))
    assert closed([held(1, 1)]) == ["S: job 1 was matched before anything was advertised"]


def test_what_an_advertisement_may_contain_or_what_may_have_replaced_it_is_in_its_favour() -> None:
    three = [held(1, 1, start=1.6), held(2, 2, start=2.6), held(3, 5)]
    assert closed(three, advert(0, 0))
    assert not closed(three, advert(0, 0), advert(4, 0)), "both had been started"
    assert closed([held(1, 1), held(2, 2), held(3, 5)], advert(0, 0), advert(4, 0)), "neither had been"
    assert not closed([held(1, 1), held(2, 2), held(3, 5)], advert(0, 0), advert(4, 1, listed=("l1", "l2")))
    assert not closed([held(1, 1)], advert(0, 2), advert(1.2, 0)), "perhaps it came first"
    assert not closed([held(1, 2)], advert(0, 0), advert(1, 2, sure=False)), "perhaps it never came"
    assert closed([held(1, 2)], advert(0, 0), advert(1, 2))


def test_whoever_is_lost_or_has_ended_is_not_counted() -> None:
    three = [held(1, 1), held(2, 2), held(3, 5)]
    three[0].end_sent = 4.0
    assert not closed(three, advert(0, 0))
    three[0].end_sent = record.NEVER
    three[1].lost = True
    assert not closed(three, advert(0, 0))


def test_a_job_in_two_hands_is_told() -> None:
    first, second = held(1, 1), held(1, 2)
    assert list(record.doubled([second, first])) == ["job 1 was given out while another had it"]
    second.lost, second.asked = True, 0.5
    assert not list(record.doubled([first, second])), "its answer may have been late"
    second.asked = 1.5
    assert list(record.doubled([first, second]))
    second.lost = False
    first.end_sent = 2.2
    assert not list(record.doubled([first, second]))
    first.end_sent, first.lost = record.NEVER, True
    assert not list(record.doubled([first, second]))


def test_a_flaw_is_shown_with_what_happened_to_its_job_and_the_faults_meanwhile(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.add("faults", "before", fault=True)
    for number in (1, 2):
        history.add("ada", "submitted", number)
    history.add("faults", "network", fault=True)
    history.add("pilot", "finish", 1)
    history.close()
    shown = history.shorten("job 1 was done twice")
    assert [(each.who, each.job_id) for each in shown] == [("ada", 1), ("faults", None), ("pilot", 1)]
    assert [each.what for each in history.shorten("a traceback")] == ["before", "network"]


def test_what_was_lost_with_the_database_is_excused_and_nothing_later(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    history.add_loss(10, 20)
    history.close()
    assert history.recently_lost(15)
    assert not history.recently_lost(21)


def test_a_service_that_is_ready_although_it_can_store_nothing_is_told() -> None:
    blind = [(100.0, 120.0, "serve")]
    assert list(checks.list_dishonest([(115, 116, "serve", True)], blind, grace=10))
    for probe in (
        (105, 106, "serve", True),
        (115, 116, "serve", False),
        (115, 116, "other", True),
        (119, 121, "serve", True),  # answered when it could store again
        (125, 126, "serve", True),
    ):
        assert not list(checks.list_dishonest([probe], blind, grace=10))


def test_a_traceback_in_a_log_is_told_with_its_error_and_place() -> None:
    text = (
        "fine\nTraceback (most recent call last):\n  File w\n    y()\n  File x\n    z()\nValueError: wrong\n"
    )
    assert list(checks.list_bad_lines([("serve", text)], lost=False)) == [
        "log of serve: Traceback (most recent call last): ValueError: wrong File x"
    ]
    behind = [("serve", "the database has lost commits")]
    assert list(checks.list_bad_lines(behind, lost=False))
    assert not list(checks.list_bad_lines(behind, lost=True))
    short = [("pilot", "Traceback (most recent call last):\n  File\nRuntimeError: can't start new thread\n")]
    assert list(checks.list_bad_lines(short, lost=False))
    assert not list(checks.list_bad_lines(short, lost=False, is_short=True))
    assert list(
        checks.list_bad_lines(
            [("pilot", "Traceback (most recent call last):\nKeyError: 1")], lost=False, is_short=True
        )
    )


def test_memory_that_grows_after_a_while_is_told_and_single_large_answers_are_not() -> None:
    def sample(*megabytes: int) -> list[tuple[float, int]]:
        return [(float(second), size << 20) for second, size in enumerate(megabytes)]

    memory = {
        "warms up": sample(*range(100), *[200] * 40),
        "grows": sample(*[100] * 120, *[108] * 20),
        "a little": sample(*[100] * 120, *[106] * 20),
        "now and then": sample(*([100] * 19 + [300]) * 7),
        "young": sample(*range(19)),
    }
    assert list(checks.list_grown(memory, since=100)) == [
        "grows has grown from 100 to 108 MB, allowed are 5%"
    ]
    assert checks.measure_halves(memory, since=100).keys() == memory.keys() - {"young"}


class _Attempts(checks.Tables):
    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self._rows = list(rows)

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        return self._rows if question == checks.REAL_ATTEMPTS else []


def test_only_jobs_that_ran_while_nodes_were_full_are_excused() -> None:
    began, over = (datetime(2026, 1, 1, 12, minute, tzinfo=UTC) for minute in (0, 10))
    tables = _Attempts(
        (1, "2026-01-01 11:00:00.000000", "2026-01-01 11:59:00.000000"),
        (2, "2026-01-01 11:00:00.000000", "2026-01-01 12:01:00.000000"),
        (3, over - timedelta(minutes=1), None),
        (4, over + timedelta(seconds=1), None),
    )
    assert checks.find_on_full_nodes(tables, [(began, over)]) == {2, 3}
    assert not checks.find_on_full_nodes(tables, [])
