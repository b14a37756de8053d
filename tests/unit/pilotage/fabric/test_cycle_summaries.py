"""Reports of directors and gateways."""

from pilotage.fabric.cycle_summaries import Presence


def test_a_report_stays_small_whatever_does_not_fit() -> None:
    here = Presence(kind="director", name="north", sites=["LCG.A.org"], every=60)
    slot = {"queue": "LCG.A.org/ce1/long", "slot": "memory 1 of 2", "jobs": 5, "task_queues": range(1000)}

    found = here.build_report("cms", too_small=[slot] * 2000)["too_small"]

    assert isinstance(found, list)
    assert (len(found), sum(len(each["task_queues"]) for each in found)) == (1000, 10_000)
    assert all(each["jobs"] == 5 for each in found)
