"""Drawing from all task queues what fits one resource: as the lottery has it, without looking at all."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from matcher.index import sampling
from matcher.index.sampling import LEAST, FenwickTree, TaskQueueSampler
from taskqueue.task_queues.task_queues import TaskQueue
from tests.support.factories.task_queues import make_task_queue


def _urn(task_queues: Sequence[TaskQueue]) -> TaskQueueSampler:
    urn = TaskQueueSampler()
    for each in task_queues:
        urn.add(each)
    return urn


def test_what_fits_is_drawn_as_often_as_the_lottery_draws_it() -> None:
    # Families of one, of a few and of many; members that weigh less than others; half of all fit.
    some = [make_task_queue(number, 1.0, family=1) for number in range(30)]
    some += [make_task_queue(100 + number, 2.0 + number, family=2) for number in range(4)]
    some += [make_task_queue(200 + number, 3.0, family=200 + number) for number in range(4)]
    fitting = [each for each in some if each.task_queue_id % 2]
    urn, chance, draws = _urn(some), Random(1), 8000
    drawn = Counter(
        found.task_queue_id
        for _ in range(draws)
        if (found := urn.draw(chance, lambda each: bool(each.task_queue_id % 2))) is not None
    )
    expected = Counter(next(sampling.draw_order(fitting, chance)).task_queue_id for _ in range(draws))
    assert drawn.keys() <= {each.task_queue_id for each in fitting}
    for each in fitting:
        both = drawn[each.task_queue_id] + expected[each.task_queue_id]
        # Five standard deviations of the difference of two counts.
        assert abs(drawn[each.task_queue_id] - expected[each.task_queue_id]) < 5 * both**0.5 + 1


def test_where_nothing_fits_nothing_is_drawn() -> None:
    assert _urn([]).draw(Random(1), lambda _: True) is None
    assert _urn([make_task_queue(1, 1.0, family=1)]).draw(Random(1), lambda _: False) is None


def test_one_without_weight_is_drawn_if_it_is_alone() -> None:
    found = _urn([make_task_queue(1, 0.0, family=1)]).draw(Random(1), lambda _: True)
    assert found is not None


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, 7.0])), max_size=40
    )
)
def test_after_any_coming_and_going_it_is_as_if_it_were_filled_anew(
    steps: list[tuple[int, int, float]],
) -> None:
    urn, inside = TaskQueueSampler(), dict[int, TaskQueue]()
    for number, family, priority in steps:
        each = make_task_queue(number, priority, family=family)
        if number not in inside:
            inside[number] = each
            urn.add(each)
        elif priority:
            urn.discard(inside.pop(number))
        else:
            urn.discard(inside[number])
            inside[number] = replace(inside[number], priority=5.0)
            urn.add(inside[number])
    chance = Random(1)
    for number, each in inside.items():
        drawn = (
            urn.draw(chance, lambda other, number=number: other.task_queue_id == number) for _ in range(100)
        )  # type: ignore[misc]
        assert each.priority == 0.0 or each in drawn
    families = {each.family for each in inside.values()}
    heaviest = (
        max(each.priority for each in inside.values() if each.family == family) for family in families
    )
    assert isclose(urn._weights.total, sum(max(weight, LEAST) for weight in heaviest), abs_tol=1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from([0.0, 1.0, 2.0, 5.0])), min_size=1, max_size=60)
)
def test_a_point_falls_on_the_weight_that_it_lies_in(steps: list[tuple[int, float]]) -> None:
    tree, weights = FenwickTree(), dict[int, float]()
    for number, weight in steps:
        tree.set(number, weight)
        weights[number] = weight
        laid = [number for number in sorted(weights) for _ in range(int(weights[number]))]
        assert tree.total == len(laid)
        assert [tree.find(place + 0.5) for place in range(len(laid))] == laid


class _Last(Random):
    """Draws the last point there is."""

    def random(self) -> float:
        return 1 - 2**-53


def test_rounding_after_much_coming_and_going_leads_nowhere_outside() -> None:
    chance = Random(1)
    for _ in range(300):
        urn = _urn([make_task_queue(number, 0.001, family=number) for number in range(5)])
        for number in range(5, 25):
            # It shares the family of one of them, and so makes that heavy for a while.
            heavy = make_task_queue(number, 1000 * chance.random(), family=chance.randrange(5))
            urn.add(heavy)
            urn.discard(heavy)
        found = urn.draw(_Last(), lambda _: True)
        assert found is None or found.task_queue_id < 5


def test_a_large_family_of_which_none_fits_is_not_looked_through_again_and_again() -> None:
    large = [make_task_queue(number, 1000.0, family=1) for number in range(2000)]
    fitting = make_task_queue(9999, 1.0, family=2)
    urn, looks = _urn([*large, fitting]), 0

    def fits(each: TaskQueue) -> bool:
        nonlocal looks
        looks += 1
        return each is fitting

    urn.draw(Random(1), fits)
    assert looks < 10 * len(large)
