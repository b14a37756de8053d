"""Permits: whatever comes in and gathers, in whatever order, no limit is exceeded."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.manager.grid_job import GridJob, ManagerPhase, PulledGridJob

LONG, SHORT = "LCG.A.org/ce1/long", "LCG.A.org/ce1/short"


def taken(job_id: int, queue: str = LONG) -> PulledGridJob:
    return PulledGridJob(job_id=job_id, epoch=1, lease="", description={}, queue=queue)


def grid_job(job_id: int, phase: ManagerPhase, queue: str = LONG, *, output: str | None = None) -> GridJob:
    return GridJob(taken=taken(job_id, queue), phase=phase, output=None if output is None else Path(output))


def test_nothing_gathers_before_the_limits_are_known() -> None:
    permits = Permits()
    assert not permits.may_gather(taken(1))
    permits.limit({})
    assert permits.may_gather(taken(1))


def test_what_submits_and_what_gathers_count_together() -> None:
    permits = Permits()
    permits.limit({"LCG.A.org": 2})
    permits.observe(
        [
            grid_job(1, ManagerPhase.SUBMITTING),
            grid_job(2, ManagerPhase.POLLING),
            grid_job(3, ManagerPhase.POLLING),
        ]
    )
    assert permits.may_gather(taken(2))
    assert not permits.may_gather(taken(3))
    permits.remove(taken(2))
    assert permits.may_gather(taken(3))


def test_an_output_on_its_way_to_the_service_counts_as_gathering() -> None:
    permits = Permits()
    permits.limit({LONG: 1})
    permits.observe([grid_job(1, ManagerPhase.ENDED, output="/a.tar"), grid_job(2, ManagerPhase.ENDED)])
    assert not permits.may_gather(taken(3))
    permits.observe([grid_job(2, ManagerPhase.ENDED)])
    assert permits.may_gather(taken(3))


def test_a_request_that_may_have_brought_a_job_counts_until_it_is_answered() -> None:
    permits = Permits()
    permits.limit({"LCG.A.org/ce1": 1})
    assert permits.expect("first", LONG)
    assert permits.expect("first", LONG)  # asked again, since the answer was lost
    assert not permits.expect("second", SHORT)
    assert not permits.may_gather(taken(7))
    permits.came("first", [])
    assert permits.may_gather(taken(7))


def test_those_that_wait_to_gather_come_before_new_ones() -> None:
    permits = Permits()
    permits.limit({LONG: 2})
    permits.observe(
        [
            grid_job(1, ManagerPhase.SUBMITTING),
            grid_job(2, ManagerPhase.SUBMITTING),
            grid_job(3, ManagerPhase.POLLING),
        ]
    )
    assert not permits.may_gather(taken(3))
    permits.observe(
        [
            grid_job(1, ManagerPhase.SUBMITTING),
            grid_job(2, ManagerPhase.POLLING),
            grid_job(3, ManagerPhase.POLLING),
        ]
    )
    assert not permits.expect("new", LONG)
    assert permits.may_gather(taken(3))


def test_a_limit_of_another_queue_does_not_matter() -> None:
    permits = Permits()
    permits.limit({SHORT: 0})
    assert permits.expect("new", LONG)
    assert not permits.expect("other", SHORT)


def test_with_a_limit_of_0_what_is_there_still_gets_out_one_by_one() -> None:
    permits = Permits()
    permits.limit({LONG: 0})
    assert permits.may_gather(taken(1))
    assert not permits.may_gather(taken(2))


class _World:
    """Grid jobs as they really are, beside what the permits have seen of them."""

    def __init__(self, limit: int) -> None:
        self.permits = Permits()
        self.permits.limit({LONG: limit})
        self.phases: dict[int, ManagerPhase] = {}
        self.old: list[GridJob] = []
        self.last = 0
        self.asked = False

    def snapshot(self) -> list[GridJob]:
        return [grid_job(job_id, phase) for job_id, phase in self.phases.items()]

    def busy(self) -> int:
        return sum(
            phase in (ManagerPhase.SUBMITTING, ManagerPhase.GATHERING) for phase in self.phases.values()
        )

    def step(self, what: str, which: int) -> None:
        polling = [job_id for job_id, phase in self.phases.items() if phase is ManagerPhase.POLLING]
        if what == "ask":
            self.asked = self.permits.expect("r", LONG)
        elif what == "answer" and self.asked:
            self.last += 1
            self.phases[self.last] = ManagerPhase.SUBMITTING
            self.permits.came("r", [taken(self.last)])
            self.asked = False
        elif what == "submitted":
            self.phases |= {
                job_id: ManagerPhase.POLLING
                for job_id, phase in list(self.phases.items())[: which + 1]
                if phase is ManagerPhase.SUBMITTING
            }
        elif what == "gather" and polling and self.permits.may_gather(taken(polling[which % len(polling)])):
            self.phases[polling[which % len(polling)]] = ManagerPhase.GATHERING
        elif what == "observe":
            self.permits.observe(self.snapshot())
        elif what == "leave":
            for job_id in [
                job_id for job_id, phase in self.phases.items() if phase is ManagerPhase.GATHERING
            ][:1]:
                del self.phases[job_id]
                self.permits.remove(taken(job_id))


_STEPS = ["ask", "answer", "submitted", "gather", "observe", "leave"]


@given(
    limit=st.integers(1, 3),
    steps=st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 3)), max_size=60),
)
def test_no_order_of_events_exceeds_a_limit(limit: int, steps: list[tuple[str, int]]) -> None:
    world = _World(limit)
    for what, which in steps:
        world.step(what, which)
        assert world.busy() <= limit
