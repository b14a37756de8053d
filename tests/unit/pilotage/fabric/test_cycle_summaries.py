"""Reports of directors and gateways."""

from datetime import UTC, datetime

from pilotage.client.api import ApiError
from pilotage.fabric.cycle_summaries import DirectorSummary, Presence


def test_a_report_stays_small_whatever_does_not_fit() -> None:
    here = Presence(kind="director", name="north", sites=["LCG.A.org"], every=60)
    slot = {"queue": "LCG.A.org/ce1/long", "slot": "memory 1 of 2", "jobs": 5, "task_queues": range(1000)}

    found = here.build_report("cms", too_small=[slot] * 2000)["too_small"]

    assert isinstance(found, list)
    assert (len(found), sum(len(each["task_queues"]) for each in found)) == (1000, 10_000)
    assert all(each["jobs"] == 5 for each in found)


def test_a_vo_gets_its_own_problems_and_those_of_batch_systems() -> None:
    summary = DirectorSummary(
        at=datetime(2026, 3, 28, tzinfo=UTC), away=["farm: away"], closed=["A/ce/q", "B/ce/q"]
    )
    with summary.noting_refusals("cms"):
        raise ApiError("the token is expired", status=401, code="unauthorized", details={})
    summary.note_problem("cms", "the token for the VO cms is not renewed")
    refusal = "nothing more is done for the VO cms in this cycle: the token is expired"
    summary.problems += ["A/ce/q: refused", refusal]  # a batch system with the same words

    assert summary.problems_of("dune", {"B/ce/q"}) == [
        "farm: away",
        "A/ce/q: refused",
        refusal,
        "down in their batch systems: B/ce/q",
    ]
    own = [refusal, "the token for the VO cms is not renewed"]
    assert summary.problems_of("cms", ()) == ["farm: away", "A/ce/q: refused", *own]
    summary.note_problem("dune", own[1])
    assert summary.list_problems() == ["A/ce/q: refused", *own], "each once"
