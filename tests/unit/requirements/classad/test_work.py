"""The work of an evaluation is bounded before it begins, by the tree and the sizes of the values."""

import unicodedata
from collections.abc import Iterator, Mapping

import classad2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from requirements.classad import evaluation, match_expression, work
from requirements.classad.evaluation import compile_node, read
from requirements.classad.expression import parse_expression
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import check, is_regexp, parts_of
from requirements.classad.syntax_tree import AND, Attribute, Call, Chain, ListOf, Node, SourceText
from requirements.errors import InvalidInput
from requirements.evaluator import decide_at_queue, eligible
from requirements.nodes import enumeration
from requirements.nodes.node_attributes import parse_node_attributes
from requirements.record import Declarations
from requirements.values import MAX_ITEMS, MAX_LIST, MAX_TEXT, Value

LONG = "x" * MAX_TEXT

TEXTS = st.sampled_from(
    ["", "x", "é", "a,b,a", "1,2,,3", '"\\\x01' * 50, LONG, "é" * MAX_TEXT, "\U0001d160" * 99]
)
SCALARS = TEXTS | st.sampled_from([True, 3, -2.5, 1e300])
VALUES = (
    SCALARS | st.lists(SCALARS, max_size=4).map(tuple) | st.sampled_from([(LONG,) * 200, ("é", 1.5) * 5000])
)
RESOURCES = st.fixed_dictionaries({}, optional={"A": VALUES, "B": VALUES, "C": VALUES})

LEAVES = st.sampled_from(
    ["A", "other.B", "C", '"a,b"', '"\\001é"', '""', "2", "-1.5", "true", "undefined", '{"a", A}', "{}"]
)
FORMS = [
    *("size(%s)", "strcat(%s, %s, %s)", "toLower(%s)", "toUpper(%s)", "string(%s)", "substr(%s, 1)"),
    *("(%s ? %s : %s)", "(%s ?: %s)", "ifThenElse(%s, %s, %s)", "{%s, %s}", "{%s, %s}[0]", "(%s == %s)"),
    *("member(%s, %s)", "identicalMember(%s, %s)", 'anyCompare("<", %s, %s)', "max(%s)", "isString(%s)"),
    *("versionGE(%s, %s)", "version_in_range(%s, %s, %s)", "strcmp(%s, %s)", "int(%s)", "(%s && %s)"),
    *(
        "stringListSize(%s)",
        "stringListSum(%s, %s)",
        "stringListMember(%s, %s)",
        "stringListIMember(%s, %s, %s)",
    ),
    *("stringListsIntersect(%s, %s)", "stringListSubsetMatch(%s, %s, %s)", "stringListISubsetMatch(%s, %s)"),
    *('regexp("a+b", %s)', 'regexp("(a|b)*a[ab]{14}c", %s, "i")', 'regexpMember("x.*y", %s)'),
]
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.sampled_from(FORMS).flatmap(
        lambda form: st.tuples(*[inner] * form.count("%s")).map(lambda parts: form % parts)
    ),
    max_leaves=12,
)


def expression(text: str) -> Node:
    source = SourceText(text=text, path="Requirements")
    node = read_expression(source)
    check(node, source)
    return node


def call(function: str, part: Node, resource: Mapping[str, Value], shares: Mapping[str, int]) -> object:
    """The value of a function of a part, where names have the shares of the whole."""
    program = compile_node(Call(name=function, arguments=(part,)))
    return program._evaluate(evaluation._read_values(program.names, resource, shares))


def length(part: Node, resource: Mapping[str, Value], shares: Mapping[str, int]) -> int:
    """Bytes of a part's value as text, by the library; 0 if it is no text."""
    value = call("string", part, resource, shares)
    return len(value.encode()) if isinstance(value, str) else 0


def least_work(node: Node, resource: Mapping[str, Value]) -> int:
    """The work of all functions by the texts that the library really gives them."""
    weights = work._BUILDING | work._READING
    shares = work.reading_shares(node)
    done = 0
    for part in parts_of(node):
        if isinstance(part, Call) and not is_regexp(part) and (weight := weights.get(part.name.lower())):
            is_converted = part.name.lower() in work._WRITERS
            texts = [
                each
                for each in part.arguments
                if is_converted or call("isString", each, resource, shares) is True
            ]
            done += weight * sum(length(each, resource, shares) for each in texts)
    return done


def sizes(node: Node, resource: Mapping[str, Value]) -> work.Sizes:
    program = compile_node(node)
    return evaluation._read_values(program.names, resource, program.shares).sizes


@given(EXPRESSIONS, RESOURCES)
def test_no_evaluation_works_more_than_was_counted_for_it(text: str, resource: dict[str, Value]) -> None:
    node = expression(text)
    counted = work.count_work(node).units(sizes(node, resource))
    if counted <= work.MAX_WORK:
        assert least_work(node, resource) <= counted


@given(EXPRESSIONS, RESOURCES)
def test_what_would_work_too_much_is_an_error_and_says_so(text: str, resource: dict[str, Value]) -> None:
    node = expression(text)
    program = compile_node(node)
    if (reason := program.find_excess(resource)) is not None:
        assert program.value(resource) is classad2.Value.Error
        assert reason.startswith("the texts that it reads and builds are too long")
    if work.count_work(node).units(sizes(node, resource)) > work.MAX_WORK:
        assert reason is not None


@given(EXPRESSIONS, RESOURCES)
@example("string(A)", {"A": ("\x01" * 500, "é" * 500)})
@example("string(A)", {"A": ("",) * 5000})
@example("false ? A : B", {"B": LONG})
@example('string({toLower(A), "\\001"})', {"A": LONG})
def test_the_bytes_of_a_text_are_at_most_those_that_were_counted(
    text: str, resource: dict[str, Value]
) -> None:
    node = expression(text)
    read = sizes(node, resource)
    if work.count_work(node).units(read) <= work.MAX_WORK:
        counter = work._Counter(only_length=True)
        counter.add(node, 1, work._ESCAPED)
        assert length(node, resource, work.reading_shares(node)) <= counter.found.value(read)


@given(VALUES)
@example("\U0001d160" * MAX_TEXT)
@example(("\u0390\u0301", "e\u0301\u0316") * 99)
def test_values_have_at_most_the_bytes_that_were_measured_before_they_are_read(value: Value) -> None:
    measured = work.measure(value)
    texts = [each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, str)]
    really = sum(len(unicodedata.normalize("NFC", each).encode()) for each in texts)
    assert really <= (measured.bytes if measured else 0)


#: Lists about as long as one name, or one of several, may have.
LISTS = st.integers(0, MAX_ITEMS).map(lambda count: ("x",) * count)


@given(EXPRESSIONS, RESOURCES | st.fixed_dictionaries({"A": LISTS, "B": LISTS, "C": LISTS}))
def test_reading_all_values_takes_no_more_than_is_allowed(text: str, resource: dict[str, Value]) -> None:
    read = sizes(expression(text), resource)
    names = work._READ_NAME * len(work.reading_shares(expression(text)))
    assert names + sum(size.reading for size in read.values()) <= work.MAX_READING


@given(st.integers(1, 5000), st.integers(0, 20))
def test_the_shares_of_many_names_are_no_more_than_the_whole(compared: int, listed: int) -> None:
    names = ListOf(items=tuple(Attribute(names=(f"l{number}",)) for number in range(listed)))
    node = Chain(
        level=AND,
        first=Call(name="size", arguments=(names,)),
        rest=tuple(("&&", Attribute(names=(f"x{number}",))) for number in range(compared)),
    )
    shares = work.reading_shares(node)
    assert len(shares) == compared + listed
    names = work._READ_NAME * len(shares)
    assert sum(shares.values()) + names <= max(work.MAX_READING, names)


class UnreadList(tuple[str, ...]):
    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("an item was looked at")


def test_items_of_a_list_with_too_many_are_not_even_measured() -> None:
    values: dict[str, Value] = {f"L{number}": UnreadList(["x"] * MAX_ITEMS) for number in range(3)}
    assert not evaluation.is_true('member("x", L0) || member("x", L1) || member("x", L2)', values)


def test_many_long_lists_are_not_copied_for_one_evaluation() -> None:
    tags = tuple(f"VO-cms-software-{number:05}" for number in range(MAX_ITEMS // 2))
    resource = {f"L{number}": tags for number in range(60)}
    text = " || ".join(f'member("x", {name})' for name in resource)
    assert compile_node(expression(text)).value(resource) is classad2.Value.Error
    [reason] = evaluation.failing_parts(text, resource)
    assert reason.has is not None
    assert reason.has.startswith("L0 is too long beside what else is read: ")
    assert evaluation.is_true('member("VO-cms-software-00007", L0)', resource)
    both = 'member("VO-cms-software-00007", L0) && L1 > 3'
    assert [each.wanted for each in evaluation.failing_parts(both, resource)] == ["L1 > 3"]


@given(st.lists(LISTS, min_size=1, max_size=9))
def test_an_operand_reads_alone_what_it_reads_within_the_whole(lists: list[tuple[str, ...]]) -> None:
    resource = {f"L{number}": value for number, value in enumerate(lists)}
    text = " && ".join(f"isList({name})" for name in resource)
    failing = evaluation.failing_parts(text, resource)
    assert evaluation.is_true(text, resource) is not bool(failing)
    groups = evaluation.group_operands(text, frozenset(map(str.lower, resource)))
    assert any(any(each.failing(resource)) for each in groups) is bool(failing)


@pytest.mark.parametrize(
    "text",
    [
        'regexp("^el[89]", F) && regexp("Xeon.*(Gold|Platinum) [0-9]{4}", F)',
        'size(toLower(F)) > 0 && stringListMember("x", F) isnt error',
        'regexpMember("^VO-cms-.*-[0-9]{3,5}$", Tags) && regexpMember("^VO-.*[13579]$", Tags) && size(F) > 5',
    ],
)
def test_usual_expressions_read_long_values(text: str) -> None:
    tags = tuple(f"VO-cms-software-{number:05}" for number in range(1300))
    operands = compile_node(expression(text))
    assert operands.find_excess({"F": LONG, "Tags": tags}) is None
    assert operands.value({"F": LONG, "Tags": tags}) in (True, False)


#: Operands whose work differs: none of `heavy` times.
OPERANDS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 90)), min_size=1, max_size=6)


@given(OPERANDS, st.sampled_from([1, 100, MAX_TEXT]))
def test_a_whole_is_true_if_and_only_if_each_operand_is(shape: list[tuple[int, int]], size: int) -> None:
    resource = {"F": "x" * size}
    operands = [f"size({'toLower(' * high}strcat(F{', F' * wide}){')' * high}) > 0" for high, wide in shape]
    text = " && ".join(operands)
    failing = evaluation.failing_parts(text, resource)
    assert evaluation.is_true(text, resource) is not bool(failing)
    assert {reason.wanted for reason in failing} <= set(operands)
    grouped = [
        each
        for group in evaluation.group_operands(text, frozenset({"f"}))
        for each in group.failing(resource)
    ]
    assert bool(grouped) is bool(failing)


NESTED = "toLower(" * 110 + "strcat(F" + ", F" * 119 + ")" + ")" * 110


def test_a_short_expression_of_one_value_is_not_evaluated_for_seconds() -> None:
    text = f"size({NESTED}) > 0"
    assert evaluation.is_true(text, {"F": "short"})
    [reason] = evaluation.failing_parts(text, {"F": LONG})
    assert reason.has is not None
    assert reason.kind == "error"
    assert "too long" in reason.has


@pytest.mark.parametrize("kind", ["rank", "either side", "number"])
def test_every_kind_of_expression_is_bounded(kind: str) -> None:
    text = f"size({NESTED})"
    resource = {"F": LONG}
    if kind == "rank":
        assert evaluation.number(text, resource) is None
    elif kind == "number":
        assert match_expression.number(text, resource, "CurMatches") is None
    else:
        asked = match_expression.parse_match_expression(f"{text.replace('F', 'TARGET.F')} > 0 && A")
        assert asked.value({"A": True}, resource) is classad2.Value.Error
        [part] = asked.failing({"A": True}, resource)
        assert "too long" in part.has({"A": True}, resource)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("x" * (MAX_TEXT + 1), "F has 4097 characters, allowed are 4096"),
        (("a", "x" * (MAX_TEXT + 1)), "F has 4097 characters in one item, allowed are 4096"),
        (("a",) * (MAX_ITEMS + 1), "F has 10001 items, allowed are 10000"),
        (
            ("x" * 4000,) * (MAX_LIST // 4000 + 1),
            "F has 1004000 characters in all items, allowed are 1000000",
        ),
    ],
)
def test_a_value_beyond_the_bounds_is_an_error_that_tells_the_bound(value: Value, reason: str) -> None:
    assert compile_node(expression("isError(F)")).value({"F": value}) is True
    [why] = evaluation.failing_parts('F == "x"', {"F": value})
    assert why.has == reason
    [why] = evaluation.failing_parts('F == "x" && G', {"F": value, "G": True})
    assert why.has == reason


def test_long_lists_are_read_but_not_with_every_function() -> None:
    tags = tuple(f"VO-cms-{number:03}" for number in range(500))
    many = " && ".join(f'member("VO-cms-{number:03}", Tags)' for number in range(50))
    assert evaluation.is_true(many, {"Tags": tags})
    assert evaluation.is_true('regexpMember("^VO-cms-49.$", Tags)', {"Tags": tags})
    matched = " || ".join(f'regexpMember("^VO-x{number}", Tags)' for number in range(20))
    assert not evaluation.is_true(matched, {"Tags": tags[:10]})
    assert compile_node(expression(matched)).value({"Tags": tags}) is classad2.Value.Error
    texts = (LONG,) * 200
    assert compile_node(expression('member("x", Tags)')).value({"Tags": texts}) is False
    assert (
        compile_node(expression('stringListMember("x", Tags)')).value({"Tags": texts}) is classad2.Value.Error
    )


@pytest.mark.parametrize(
    "text",
    [
        f"size(toLower(strcat(CPU, other.F, {', '.join(['F'] * 60)}))) > RAM || Disk > 3 && {NESTED} == CPU",
        " || ".join(f"Disk > {n} + size(toLower(strcat({', '.join(['F'] * 60)})))" for n in range(20)),
    ],
    ids=["for many combinations", "in many comparisons"],
)
def test_a_resolution_works_no_more_than_its_budget(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    done: list[int] = []
    nodes = parse_node_attributes(
        {"CPU": [LONG[:-1] + str(n) for n in range(9)], "RAM": list(range(30)), "Disk": "unknown"}
    )

    def evaluate(program: evaluation.Program, values: evaluation._ReadValues) -> object:
        done.append(min(work.MAX_WORK, sum(each.work.units(values.sizes) for each in program.limits)))
        return evaluate_really(program, values)

    evaluate_really = evaluation.Program._evaluate
    monkeypatch.setattr(evaluation.Program, "_evaluate", evaluate)
    assert decide_at_queue(parse_expression(text), {"F": LONG}, Declarations(), nodes).eligible
    assert sum(done) <= enumeration.MAX_WORK


def test_an_expression_that_builds_too_much_is_true_of_no_queue() -> None:
    asked = parse_expression(f"size({NESTED}) > 0")
    assert eligible(asked, {"F": "x"}, Declarations())
    assert not eligible(asked, {"F": LONG}, Declarations())


def test_patterns_with_many_states_count_by_their_size() -> None:
    light, heavy = expression('regexp("^el9$", F)'), expression('regexp("(.{1,20}){1,20}q", F)')
    assert compile_node(light).value({"F": LONG}) is False
    assert compile_node(heavy).value({"F": "x" * 80}) is False
    assert compile_node(heavy).value({"F": LONG}) is classad2.Value.Error


def test_expressions_of_accepted_size_with_many_texts_are_read() -> None:
    with pytest.raises(InvalidInput):
        read(SourceText(text="strcat(" + ", ".join(["F"] * 6000) + ")", path="Requirements"))
    program = read(SourceText(text="size(strcat(" + ", ".join(["F"] * 2900) + ")) > 0", path="Requirements"))
    assert program.value({"F": "x" * 100}) is True
