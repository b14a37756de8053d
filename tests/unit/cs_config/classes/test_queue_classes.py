import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.classes import queue_classes
from cs_config.tree import glue
from cs_config.tree.address import QueueAddress
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad.expression import Expression
from requirements.record import Declaration, Declarations, Record, ValueKind
from requirements.values import Value

TREE = """\
Resources:
  Sites:
    S:
      CEs:
        C:
          MaxRAM: 4000
          Queues:
            a: {Tag: [x, Y]}
            b: {Tag: [x, Y], maxram: 4000}
            c: {MaxRAM: 2000}
            d: {Enabled: false}
            e: {VO: [atlas]}
            f: {VOs: {cms: {Tag: [x, Y]}}}
"""


def queues(vo: str) -> list[str]:
    config = validate.parse(TREE)
    return ["".join(queue.queue for queue in each.queues) for each in queue_classes.queue_classes(config, vo)]


def test_queues_that_no_requirement_can_tell_apart_are_one_class() -> None:
    assert queues("cms") == ["abf", "c"]
    assert queues("dune") == ["ab", "c", "f"]


def test_a_vo_has_classes_of_what_it_may_use_only() -> None:
    assert queues("atlas") == ["ab", "c", "e", "f"]


def test_the_digest_is_the_same_everywhere() -> None:
    values = {"MaxRAM": 4000, "Tag": ("x", "Y"), "Enabled": True, "Name": "Ä", "Power": 1.5}
    respelled = {"POWER": 1.5, "NAME": "A\u0308", "enabled": True, "TAG": ("x", "Y"), "maxram": 4000}
    assert (
        queue_classes.digest(values)
        == queue_classes.digest(respelled)
        == "710102e438278e4a01ac1158743e9592b3ae56056ee89390c298f85b0c8ecd5a"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (4000, (4000,)),
        (4000, 4000.0),
        (4000, "4000"),
        (1, True),
        (0.0, -0.0),
        ("CentOS", "centos"),
        ("App1", ("App1",)),
        (("a", "b"), ("b", "a")),
        (("a",), ("a", "a")),
        (("a", "b"), "a, b"),
    ],
)
def test_what_some_requirement_can_tell_apart_are_two_classes(one: Value, other: Value) -> None:
    assert queue_classes.digest({"A": one}) != queue_classes.digest({"A": other})


DECLARATIONS = Declarations.find([Declaration(name="Declared", kind=ValueKind.NUMBER, resource="Memory")])
_SAID: tuple[Value, ...] = (
    *(4000, 4000.0, (4000,), (4000.0,), (4000, 2000), (2000, 4000), "4000", "4e3", 0.0, -0.0, 0),
    *("CentOS", "centos", ("CentOS",), ("centos", "CentOS"), "caf\u00e9", "cafe\u0301", ("cafe\u0301",)),
    *(True, False, 1, (True,), (1,), "true", "a", ("a",), ("a", "a"), ("a", "b"), ("b", "a")),
)
_NAMES = (("Memory", "memory"), ("OS", "os"), ("Soft", "SOFT"))
_queues = st.fixed_dictionaries(
    {}, optional={pair: st.tuples(st.sampled_from(pair), st.sampled_from(_SAID)) for pair in _NAMES}
).map(lambda said: dict(said.values()))
_asked_values = st.sampled_from((2000, 4000, 4000.0, "centos", "CentOS", "a", True, 1, ("a", "b"), ("a",)))
_records = st.dictionaries(st.sampled_from(("Memory", "OS", "Soft", "Declared")), _asked_values, min_size=1)
_TEXTS = (
    *('other.{} =?= "CentOS"', 'regexp("^centos$", other.{})', 'other.{} == "caf\u00e9"'),
    *("other.{} >= 2000", "other.{} / 3 == 1333", 'member("a", other.{})', 'other.{}[0] == "a"'),
    *("other.{} =?= 1", "other.{} == true", "size(other.{}) == 1", 'string(other.{}) == "-0.0"'),
    *("isList(other.{})", "isReal(other.{})", 'strcat("", other.{}) == "4000"', "other.{} =?= undefined"),
)
_texts = st.tuples(st.sampled_from(_TEXTS), st.sampled_from(("Memory", "OS", "Soft"))).map(
    lambda each: each[0].format(each[1])
)
_asked: st.SearchStrategy[Requirements] = _records.map(
    lambda values: Record(values=tuple(sorted(values.items())))
) | st.lists(_texts, min_size=1, max_size=2).map(lambda texts: Expression(text=" || ".join(texts)))


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[dict[str, Value], dict[str, Value]]:
    """Queues that say nearly the same: the other is the first in another spelling, or with something else."""
    one = draw(_queues)
    other = {draw(st.sampled_from((name, name.upper(), name.lower()))): value for name, value in one.items()}
    for name in draw(st.sets(st.sampled_from(sorted(other)))) if other else ():
        other[name] = draw(st.sampled_from(_like(other[name])))
    return one, other


def _like(value: Value) -> list[Value]:
    """Values that are easily taken for a value, itself among them."""
    items = value if isinstance(value, tuple) else (value,)
    first = items[0]
    found: list[Value] = [value, items, first, items[::-1], (*items, first)]
    if isinstance(first, str):
        forms = ("NFC", "NFD")
        found += [first.upper(), first.lower(), *(unicodedata.normalize(form, first) for form in forms)]
    elif isinstance(first, int | float):
        found += [float(first), int(first), -float(first), bool(first), str(first)]
    return found


@given(_pairs(), st.lists(_asked, min_size=1, max_size=5))
def test_queues_of_one_digest_have_the_same_answer_to_every_requirement(
    pair: tuple[dict[str, Value], dict[str, Value]], asked: list[Requirements]
) -> None:
    one, other = pair
    if queue_classes.digest(one) != queue_classes.digest(other):
        return
    for each in asked:
        assert evaluator.eligible(each, one, DECLARATIONS) == evaluator.eligible(each, other, DECLARATIONS)


def test_classes_are_computed_once() -> None:
    config = validate.parse(TREE)
    assert queue_classes.queue_classes(config, "cms") is queue_classes.queue_classes(config, "CMS")


def test_the_values_of_a_class_are_those_of_its_queues() -> None:
    config = validate.parse(TREE)
    first = queue_classes.queue_classes(config, "cms")[0]
    assert first.values == glue.build_ad({"MaxRAM": 4000, "Tag": ("x", "Y")})
    assert first.queues[0] == QueueAddress(site="S", ce="C", queue="a")
