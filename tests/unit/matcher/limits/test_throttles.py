"""The arithmetic of the policies."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.tree.throttle import LIMITS, Policy, Throttle
from matcher.limits import throttles
from matcher.limits.throttles import ThrottleState
from pilotage.cli.commands import site

#: As the SAM-Grid documents print them, with the start values of CurMatches.
PRINTED = {
    Policy.LEVEL0: ("( CurMatches < MaxSubmittingJobs )", "CurrentSubmittingJobs"),
    Policy.LEVEL1: (
        "( CurMatches < MaxSubmittingAndOutputGatheringJobs )",
        "CurrentSubmittingJobs + CurrentGatheringOutputJobs",
    ),
    Policy.LEVEL2: (
        """( CurMatches < MaxJobs ) && (JobsMatchedSinceLastAdvertisement + CurrentSubmittingJobs
        + CurrentGatheringOutputJobs) < MaxSubmittingAndOutputGatheringJobs""",
        "CurrentJobs",
    ),
    Policy.BROKERING: (
        """( CurMatches < MaxJobs ) && (JobsMatchedSinceLastAdvertisement + CurrentSubmittingJobs)
        < MaxSubmittingJobs""",
        "CurrentJobs",
    ),
    Policy.SIMPLE: ("( CurrentJobs < MaxJobs )", "CurrentJobs"),
}
COUNTS = st.integers(0, 6)
STATES = st.fixed_dictionaries(dict.fromkeys((*throttles.COUNTERS, *LIMITS), COUNTS))


def throttle(policy: str, **said: Any) -> Throttle:
    return Throttle.model_validate({"Policy": policy, **said})


def state(policy: str, *, reserved: int = 0, advertised: Any = None, **said: Any) -> ThrottleState:
    return ThrottleState(throttle=throttle(policy, **said), advertised=advertised or {}, reserved=reserved)


@pytest.mark.parametrize("policy", PRINTED)
@given(advertised=STATES, reserved=COUNTS)
def test_a_policy_is_the_expression_that_the_document_prints(
    policy: Policy, advertised: dict[str, int], reserved: int
) -> None:
    requirements, start = PRINTED[policy]
    printed = {**advertised, "Requirements": requirements, "CurMatches": start}
    by_expression = state("expression", advertised=printed, reserved=reserved)
    by_policy = state(policy, advertised=advertised, reserved=reserved)
    assert bool(by_policy.room().jobs != 0) == by_expression.admits({}) == (by_expression.room().jobs != 0)
    assert by_policy.start == by_expression.start


#: The lines of a site's advertisement as the documents print them, its whitespace and letters varied.
WRITTEN = {
    "as printed": lambda text: text,
    "in one line": lambda text: " ".join(text.split()),
    "without blanks": lambda text: "".join(text.split()),
    "with many": lambda text: text.replace(" ", "\n\t  "),
    "in small letters": str.lower,
    "in capitals": str.upper,
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("policy", PRINTED)
def test_the_printed_lines_are_read_however_they_are_written(policy: Policy, written: str) -> None:
    requirements, start = (WRITTEN[written](text) for text in PRINTED[policy])
    words = [f"Requirements = {requirements}", f"CurMatches = {start}"]
    said = {"CurrentJobs": 2, "CurrentSubmittingJobs": 1, "CurrentGatheringOutputJobs": 1}
    limits = {"MaxJobs": 4, "MaxSubmittingJobs": 3, "MaxSubmittingAndOutputGatheringJobs": 3}
    advertised = {**site.pairs(words), **said, **limits}
    for reserved in range(4):
        by_expression = state("expression", advertised=advertised, reserved=reserved)
        by_policy = state(policy, advertised={**said, **limits}, reserved=reserved)
        assert (by_expression.room().jobs != 0) == (by_policy.room().jobs != 0)
        assert by_expression.start == by_policy.start


@pytest.mark.parametrize("policy", sorted(set(Policy) - {Policy.EXPRESSION, Policy.SIMPLE}))
@given(advertised=STATES, reserved=COUNTS)
def test_the_room_is_how_often_the_policy_can_be_asked_until_it_closes(
    policy: Policy, advertised: dict[str, int], reserved: int
) -> None:
    room = state(policy, advertised=advertised, reserved=reserved).room().jobs
    assert room is not None
    for taken in range(room + 1):
        left = state(policy, advertised=advertised, reserved=reserved + taken).room().jobs
        assert left == room - taken


def test_a_limit_that_nobody_sets_closes_the_throttle() -> None:
    room = state("level0", advertised={"CurrentSubmittingJobs": 0}).room()
    assert (room.jobs, room.why) == (0, "limit not set: MaxSubmittingJobs")
    room = state("expression").room()
    assert (room.jobs, room.why) == (0, "limit not set: Requirements")


def test_a_counter_that_is_not_advertised_closes_it_too() -> None:
    room = state("level1", MaxSubmittingAndOutputGatheringJobs=5, advertised={"CurrentSubmittingJobs": 0})
    assert room.room().why == "not advertised: CurrentSubmittingJobs or CurrentGatheringOutputJobs"


@pytest.mark.parametrize(
    ("configured", "advertised", "room"), [(3, 5, 3), (5, 3, 3), (None, 3, 3), (3, None, 3)]
)
def test_of_two_limits_the_smaller_holds(configured: int | None, advertised: int | None, room: int) -> None:
    said = {"currentsubmittingjobs": 0} | ({} if advertised is None else {"maxsubmittingjobs": advertised})
    options = {} if configured is None else {"MaxSubmittingJobs": configured}
    assert state("level0", advertised=said, **options).room().jobs == room


def test_a_closed_throttle_says_why() -> None:
    advertised = {"CurrentJobs": 4, "CurrentSubmittingJobs": 1}
    room = state("brokering", MaxJobs=9, MaxSubmittingJobs=3, advertised=advertised, reserved=2).room()
    said = "CurrentSubmittingJobs + JobsMatchedSinceLastAdvertisement = 3 ≥ MaxSubmittingJobs 3"
    assert (room.jobs, room.why) == (0, said)


def test_an_expression_may_ask_the_job() -> None:
    asked = state("expression", Requirements='TARGET.Owner == "ada" && other.CPUTime < MaxCPU')
    asked = ThrottleState(throttle=asked.throttle, advertised={"MaxCPU": 100, "CurrentJobs": 0})
    assert asked.depends_on_job
    assert asked.room().jobs is None
    assert asked.admits({"Owner": "Ada", "CPUTime": 99})
    assert not asked.admits({"Owner": "Ada", "CPUTime": 100})
    assert not asked.admits({"Owner": "bob", "CPUTime": 1})
    assert not asked.admits({})


def test_a_condition_about_the_site_alone_closes_it_for_every_job_and_is_told_with_its_counters() -> None:
    asks = 'CurMatches < 2 && TARGET.Owner == "ada"'
    room = state("expression", Requirements=asks, advertised={"CurrentJobs": 2.0}).room()
    assert (room.jobs, room.why) == (0, "CurMatches < 2 is not true: CurMatches = 2")
    open_ = state("expression", Requirements=asks, advertised={"CurrentJobs": 1})
    assert (open_.room().jobs, open_.refuses({"owner": "ada"})) == (None, None)
    assert open_.refuses({"owner": "bob"}) == 'TARGET.Owner == "ada" is not true: TARGET.Owner = bob'


def test_a_number_beside_a_question_to_the_job_does_not_close_a_site_that_would_admit_it() -> None:
    for asks in ("1 && other.A == 1", "CurrentJobs && other.A == 1"):
        asked = state("expression", Requirements=asks, advertised={"CurrentJobs": 2})
        assert asked.room().jobs is None


def test_the_configured_and_the_advertised_expression_must_both_be_true() -> None:
    asked = {"Requirements": "CurMatches < 3", "CurrentJobs": 0}
    for reserved, open_ in ((0, True), (1, True), (2, False), (3, False)):
        both = state("expression", Requirements="CurMatches < 2", advertised=asked, reserved=reserved)
        assert (both.room().jobs == 1) is open_


def test_the_simplest_throttle_of_the_document_counts_matches_since_the_advertisement() -> None:
    advertised = {"Requirements": "(CurMatches < MaxMatches)", "CurMatches": 0, "MaxMatches": 2}
    assert [state("expression", advertised=advertised, reserved=n).room().jobs for n in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("wrong", ["CurMatches <", "fetchurl()", "NoSuchName < 3", "1", "error", 5, True])
def test_what_is_not_true_is_closed(wrong: object) -> None:
    asked = state("expression", advertised={"Requirements": wrong, "CurrentJobs": 0})
    assert (asked.room().jobs == 0) is (wrong is not True)
