"""The index over queue classes says what the evaluator says of each class."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.classes import queue_columns
from cs_config.classes.queue_class_index import QueueClassIndex
from cs_config.classes.queue_classes import QueueClass, digest
from cs_config.classes.queue_columns import EligibleSets, RequirementQuestion
from requirements import evaluator
from requirements.bitset import Renumbering, list_positions, mask_from
from requirements.canonical import Requirements
from requirements.classad.expression import Expression
from requirements.nodes.enumeration import MAX_TOTAL, TotalWork
from requirements.nodes.node_attributes import NodeAttributes
from requirements.record import Declaration, Declarations, MatchRule, Record, ValueKind
from requirements.values import Value

DECLARATIONS = Declarations.find(
    [
        Declaration(name="Memory", kind=ValueKind.NUMBER, resource="MaxRAM"),
        Declaration(name="Least", kind=ValueKind.NUMBER, resource="maxram"),
        Declaration(name="Tags", kind=ValueKind.LIST, match=MatchRule.ALL, resource="Tag"),
    ]
)
_MODELS = ("Xeon", "EPYC", "xeon")
_numbers = st.sampled_from((1000, 2000, 4000, 4000.0))
_tags = st.lists(st.sampled_from(("a", "b", "c")), max_size=3, unique=True).map(tuple)
_values: st.SearchStrategy[dict[str, Value]] = st.fixed_dictionaries(
    {},
    optional={
        "MaxRAM": _numbers,
        "CPUModel": st.sampled_from(_MODELS),
        "Tag": _tags,
        "Flag": st.sampled_from((True, 1, "true")),
    },
)
_options = st.none() | st.lists(st.none() | _numbers, min_size=1, max_size=3).map(tuple)
_nodes = st.none() | _options.map(lambda options: NodeAttributes(declared=(("MaxRAM", options),)))


@st.composite
def _classes(draw: st.DrawFn) -> list[QueueClass]:
    found: dict[str, QueueClass] = {}
    for _ in range(draw(st.integers(0, 8))):
        values: dict[str, Value] = draw(_values)
        nodes = draw(_nodes) or NodeAttributes()
        alike = nodes.without_these(values)
        name = digest(alike, nodes)
        found[name] = QueueClass(digest=name, values=alike, queues=(), nodes=nodes)
    return list(found.values())


_named: st.SearchStrategy[dict[str, Value]] = st.fixed_dictionaries(
    {},
    optional={
        "CPUModel": st.sampled_from(_MODELS),
        "Flag": st.sampled_from((True, 1, "TRUE")),
        "Least": _numbers,
        "Memory": _numbers,
        "Tags": _tags.filter(bool),
    },
)
_records = _named.map(
    lambda values: Record(values=tuple(sorted(values.items(), key=lambda each: each[0].lower())))
)
_conditions = st.sampled_from(
    (
        "other.MaxRAM >= 2000",
        'other.CPUModel == "xeon" || other.MaxRAM > 3000',
        'member("a", other.Tag)',
        "other.Absent =?= undefined",
        "other.MaxRAM / 0 > 1",
        "other.MaxRAM",
        "this is no expression",
    )
)
_expressions = st.lists(_conditions, min_size=1, max_size=3).map(
    lambda all_: Expression(text=" && ".join(all_))
)
_asked = _records.filter(lambda record: bool(record.values)) | _expressions


def _said(index: QueueClassIndex, requirements: Requirements) -> EligibleSets:
    return index.resolve(index.question(requirements))


def _expected(index: QueueClassIndex, requirements: Requirements) -> EligibleSets:
    eligible = undecided = 0
    for slot, each in index.classes.items():
        standing = evaluator.decide_at_queue(requirements, each.values, DECLARATIONS, each.nodes)
        eligible |= standing.eligible << slot
        undecided |= bool(standing.undecided) << slot
    return EligibleSets(eligible=eligible, undecided=undecided)


@given(_classes(), st.lists(_asked, min_size=1, max_size=4))
def test_an_index_says_of_each_class_what_the_evaluator_says(
    classes: list[QueueClass], asked: Sequence[Requirements]
) -> None:
    index = QueueClassIndex(classes, DECLARATIONS, vo="lhcb")
    for each in asked:
        assert _said(index, each) == _expected(index, each)


def test_a_number_that_counts_as_true_beside_others_is_not_true_by_itself() -> None:
    only = QueueClass(digest="one", values={"MaxRAM": 1000}, queues=())
    index = QueueClassIndex([only], DECLARATIONS, vo="lhcb")
    for text in ("other.Absent =?= undefined && other.MaxRAM", "other.MaxRAM"):
        asked = Expression(text=text)
        assert index.resolve_pool(text, asked) == _expected(index, asked)


def test_a_pool_is_resolved_once_at_a_time_and_others_do_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only = QueueClass(digest="one", values={"MaxRAM": 1000}, queues=())
    index = QueueClassIndex([only], DECLARATIONS, vo="lhcb")
    small, large = Record(values=(("Memory", 500),)), Record(values=(("Memory", 2000),))
    began, may_end, resolve = Event(), Event(), index.resolve
    resolved: list[Requirements] = []

    def resolve_slowly(question: RequirementQuestion) -> EligibleSets:
        resolved.append(question.whole)
        if question.whole is small:
            began.set()
            assert may_end.wait(300)
        return resolve(question)

    monkeypatch.setattr(index, "resolve", resolve_slowly)
    with ThreadPoolExecutor(2) as threads:
        slow = [threads.submit(index.resolve_pool, "small", small) for _ in range(2)]
        assert began.wait(300)
        assert index.resolve_pool("large", large) == EligibleSets(eligible=0)
        may_end.set()
        assert [each.result() for each in slow] == [EligibleSets(eligible=1)] * 2
    assert resolved == [small, large]


@given(
    st.lists(st.booleans(), max_size=9).flatmap(
        lambda bits: st.tuples(st.just(bits), st.permutations(range(len(bits))))
    )
)
def test_renumbered_sets_have_the_same_queues(drawn: tuple[list[bool], list[int]]) -> None:
    bits, numbers = drawn
    sets = EligibleSets(
        eligible=mask_from(range(len(bits))), undecided=mask_from([n for n, bit in enumerate(bits) if bit])
    )
    found = sets.renumbered(Renumbering(numbers))
    assert found.eligible == sets.eligible
    assert [bool(found.undecided >> number & 1) for number in numbers] == bits


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 9), st.integers(0, 2**90 - 1))
def test_neighbours_that_move_together_have_their_new_numbers(
    start: int, length: int, room: int, members: int
) -> None:
    """Some are taken out of the middle and put at the end; slots are free between."""
    numbers = [*range(start + 30, start + 60), *range(start), *range(100 + room, 100 + room + length)]
    members &= (1 << len(numbers)) - 1
    found = Renumbering(numbers).apply(members)
    assert set(list_positions(found)) == {numbers[each] for each in list_positions(members)}


def test_an_expression_with_many_combinations_at_many_queues_has_one_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requirement = Expression(text="other.MaxRAM > 3000 && other.MaxRAM < 2000 || other.Rank < 0")
    nodes = NodeAttributes(declared=(("MaxRAM", None),))
    classes = [
        QueueClass(digest=f"{rank}", values={"Rank": rank}, queues=(), nodes=nodes) for rank in range(9)
    ]

    def resolve() -> EligibleSets:
        index = QueueClassIndex(classes, DECLARATIONS, vo="lhcb")
        return index.resolve_pool("pool", requirement)

    assert resolve() == EligibleSets(eligible=0)
    one = TotalWork()
    evaluator.decide_at_queue(requirement, classes[0].values, DECLARATIONS, nodes, one)
    monkeypatch.setattr(queue_columns, "TotalWork", lambda: TotalWork(left=4 * (MAX_TOTAL - one.left)))
    found = resolve()
    assert found.eligible == found.undecided
    assert found.eligible.bit_count() == len(classes) - 4
