"""For all facts of a node: where requirements are fulfilled, the batch system would take the node."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad.expression import Expression
from requirements.nodes.flags import NodeFlags, compile_flags
from requirements.nodes.lrms_vocabulary import ARC, SLURM, are_flags, parse_vocabulary
from requirements.nodes.node_attributes import NodeAttributes, Option, parse_node_attributes
from requirements.nodes.site_mapping import SiteMapping, parse_mapping
from requirements.record import Declaration, Declarations, MatchRule, Record, ValueKind
from requirements.values import Value, fold
from tests.support.fakes.batch_languages import LANGUAGES, BatchNode, has_value, number

NOTHING_DECLARED = Declarations()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A mapping, and what its words mean to the batch system."""

    mapping: SiteMapping
    numbers: Mapping[str, tuple[str, Fraction]]  #: attribute → word, factor
    texts: Mapping[str, tuple[str, Mapping[str, str]]] = field(
        default_factory=dict
    )  #: → word, text of a value
    features: Mapping[str, tuple[str, str | float]]  #: feature → attribute, value

    def takes(self, arguments: tuple[str, ...], facts: Mapping[str, Value]) -> bool:
        numbers = {word: number(facts.get(name), factor) for name, (word, factor) in self.numbers.items()}
        texts = {
            word: table.get(fact.lower(), fact)
            for name, (word, table) in self.texts.items()
            if isinstance(fact := facts.get(name), str)
        }
        node = BatchNode(
            numbers={word: value for word, value in numbers.items() if value is not None},
            texts=texts,
            features=frozenset(
                feature
                for feature, (name, value) in self.features.items()
                if has_value(facts.get(name), value)
            ),
        )
        return LANGUAGES.get(self.mapping.vocabulary.name, own_language)(arguments, node)


#: Of a batch system that a site describes itself.
OWN = {
    "Forms": {
        "min": ["--least", "{word}:{value}"],
        "max": ["--most", "{word}:{value}"],
        "equal": ["--is", "{word}:{value}"],
        "feature": ["--with={word}"],
    }
}


def site(
    vocabulary: str | dict[str, object],
    words: tuple[str, str],
    *,
    both: bool,
    factor: Fraction,
    unit: str | None,
) -> Site:
    """n and m are numbers, s a text, b a boolean, l a list."""
    first, second = words
    bound = (lambda word: {"min": word, "max": word}) if both else (lambda word: {"min": word})
    told = {"equal": "model"} if vocabulary in ("GridEngine", "HTCondor", OWN) else None
    if vocabulary == "LSF":
        told = {"equal": "model", "values": {"a": "A1", "b": "B1"}}
    text_features = {} if told else {"sa": ("s", "a"), "sb": ("s", "b")}
    features = {
        "outbound": ("b", True),
        "private": ("b", False),
        "la": ("l", "a"),
        "lb": ("l", "b"),
        "l2": ("l", 2),
        **text_features,
    }
    attributes = {
        "n": bound(first),
        "m": bound(second) | ({"unit": unit} if unit else {}),
        "s": told or {"features": {"a": "sa", "b": "sb"}},
        "b": {"features": {True: "outbound", False: "private"}},
        "l": {"features": {"a": "la", "b": "lb", 2: "l2"}},
    }
    values = {"a": "A1", "b": "B1"} if vocabulary == "LSF" else {}
    return Site(
        mapping=parse_mapping({"Vocabulary": vocabulary, "Attributes": attributes}),
        numbers={"n": (first, Fraction(1)), "m": (second, factor)},
        texts={"s": ("model", values)} if told else {},
        features=features,
    )


SITES = {
    "Slurm": site("Slurm", ("mem", "time"), both=False, factor=Fraction(1, 60), unit="s"),
    "GridEngine": site("GridEngine", ("mem_free", "h_rt"), both=False, factor=Fraction(60), unit="min"),
    "PBS": site("PBS", ("mem", "cput"), both=False, factor=Fraction(60), unit="min"),
    "LSF": site("LSF", ("mem", "speed"), both=True, factor=Fraction(1), unit=None),
    "HTCondor": site("HTCondor", ("Memory", "Speed"), both=True, factor=Fraction(1), unit=None),
    "own": site(OWN, ("memory", "speed"), both=True, factor=Fraction(1), unit=None),
}
EVERY_SITE = pytest.mark.parametrize("where", SITES)

#: What a node of which nothing is known may turn out to have, by attribute.
NUMBERS: tuple[Option, ...] = (None, -1, 0, 0.5, 1, 2, 2.5, 90, True, False, "a", "2")
FACTS: dict[str, tuple[Option, ...]] = {
    "n": NUMBERS,
    "m": NUMBERS,
    "s": (None, "a", "A", "b", "c d", "$(x)", 2, True),
    "b": (None, True, False, 0, 1, 3, "a"),
    "l": (None, ("a", "b"), ("B",), ("c",), (2, "c"), (), "a", "c"),
}


def own_language(flags: Sequence[str], node: BatchNode) -> bool:
    """What the arguments of `OWN` mean: all of them hold."""
    rest = iter(flags)
    for each in rest:
        option, _, feature = each.partition("=")
        if option == "--with":
            if feature not in node.features:
                return False
            continue
        word, _, value = next(rest).partition(":")
        if option == "--is":
            if fold(node.texts.get(word, "")) != fold(value):
                return False
        elif not node.has(word, {"--least": ">=", "--most": "<="}[option], value):
            return False
    return True


def facts_of(nodes: NodeAttributes) -> Iterator[dict[str, Value]]:
    options = [FACTS[name] if said is None else said for name, said in nodes.declared]
    for combination in itertools.product(*options):
        yield {name: fact for name, fact in zip(nodes.names, combination, strict=True) if fact is not None}


def check(
    where: Site,
    requirements: Requirements,
    nodes: NodeAttributes,
    declarations: Declarations = NOTHING_DECLARED,
) -> tuple[str, ...]:
    decision = evaluator.decide_at_queue(requirements, {}, declarations, nodes)
    found = compile_flags(decision, where.mapping)
    arguments = found.arguments
    assert are_flags(arguments, [where.mapping.vocabulary])
    for facts in facts_of(nodes) if decision.eligible else ():
        if evaluator.eligible(requirements, facts, declarations):
            assert where.takes(arguments, facts), (arguments, facts)
        elif found.sufficient and is_as_mapped(facts, nodes):
            assert not where.takes(arguments, facts), (arguments, facts)
    return arguments


def flags_of(asked: str | Record, nodes: NodeAttributes, mapping: SiteMapping, **known: Value) -> NodeFlags:
    requirements = Expression(text=asked) if isinstance(asked, str) else asked
    decision = evaluator.decide_at_queue(requirements, known, NOTHING_DECLARED, nodes)
    assert decision.eligible
    return compile_flags(decision, mapping)


def is_as_mapped(facts: Mapping[str, Value], nodes: NodeAttributes) -> bool:
    """Whether unknown attributes have values of the kind that their words stand for."""
    kinds = {"n": (int, float), "m": (int, float), "s": str, "b": bool, "l": tuple}
    return all(
        nodes.options(name) is not None
        or (isinstance(fact, kinds[name]) and (name == "b" or not isinstance(fact, bool)))
        for name, fact in facts.items()
    )


COMPARISONS = st.tuples(
    st.sampled_from(["n", "m", "n", "m", "s", "b"]),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "=?=", "=!="]),
    st.sampled_from(["0", "1", "2", "2.5", "90", "-1", '"a"', '"B"', "true", "false", "n", '"$(x)"']),
).map(" ".join)
LEAVES = st.one_of(
    COMPARISONS,
    COMPARISONS,
    st.sampled_from(
        [
            *("b", "!b", "n", "90 <= m", "2 < n", '"a" == s', "n * 2 > 3", "n + m > 3", 'regexp("^a", s)'),
            *('member("a", l)', "member(2, l)", 'member(s, {"a", "b"})', "member(n, {1, 2})", "size(l) > 1"),
            *("isUndefined(s)", "member(b, {true})", "undefined", "error", "true", 'b != "a"', 's == "c d"'),
        ]
    ),
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda each: "({}) && ({})".format(*each)),
        st.tuples(inner, inner).map(lambda each: "({}) || ({})".format(*each)),
        st.tuples(inner, inner, inner).map(lambda each: "({}) || ({}) || ({})".format(*each)),
        inner.map("!({})".format),
        st.tuples(inner, inner, inner).map(lambda each: "({}) ? ({}) : ({})".format(*each)),
        st.tuples(inner, inner, inner).map(lambda each: "ifThenElse({}, {}, {})".format(*each)),
        st.tuples(inner, inner).map(lambda each: "({}) ?: ({})".format(*each)),
        st.tuples(inner, inner).map(lambda each: "({}) == ({})".format(*each)),
    ),
    max_leaves=8,
)
NODES = st.fixed_dictionaries(
    {},
    optional={
        name: st.just("unknown")
        | st.lists(st.sampled_from(facts), min_size=1, max_size=3).map(
            lambda each: [list(one) if isinstance(one, tuple) else one for one in each]
        )
        for name, facts in FACTS.items()
    },
).map(parse_node_attributes)


@EVERY_SITE
@settings(max_examples=60, deadline=None)
@given(text=EXPRESSIONS, nodes=NODES)
@example(text="n > 2 || b == true", nodes=parse_node_attributes({"n": "unknown", "b": [True, 3]}))
@example(text="b", nodes=parse_node_attributes({"b": "unknown"}))
@example(text="!(b == true)", nodes=parse_node_attributes({"b": "unknown"}))
@example(text='!member(s, {"a", "b"})', nodes=parse_node_attributes({"s": "unknown"}))
@example(text="n == 1", nodes=parse_node_attributes({"n": "unknown"}))
@example(text="n == 1 || n", nodes=parse_node_attributes({"n": "unknown"}))  # to have 1 and to count as true
@example(text="b == 1 || b", nodes=parse_node_attributes({"b": "unknown"}))
def test_a_node_that_an_expression_wants_is_never_kept_out(
    where: str, text: str, nodes: NodeAttributes
) -> None:
    check(SITES[where], Expression(text=text), nodes)


ASKED = {
    "n": st.sampled_from([1, 2, 2.5, 90, (1, 2), "2"]),
    "m": st.sampled_from([1, 90]),
    "s": st.sampled_from(["a", "A", "c d", ("a", "b"), ("a", "z")]),
    "b": st.sampled_from([True, False]),
    "l": st.sampled_from(["a", ("a", "b"), (2, "a"), 2]),
}
DECLARED = st.sampled_from(
    [
        NOTHING_DECLARED,
        Declarations.find(
            [Declaration(name="n", kind=ValueKind.NUMBER), Declaration(name="l", match=MatchRule.ALL)]
        ),
        Declarations.find(
            [Declaration(name="l", kind=ValueKind.LIST), Declaration(name="s", kind=ValueKind.STRING)]
        ),
        Declarations.find([Declaration(name="m", resource="n")]),
    ]
)


@EVERY_SITE
@settings(max_examples=60, deadline=None)
@given(asked=st.fixed_dictionaries({}, optional=ASKED).filter(bool), nodes=NODES, declarations=DECLARED)
def test_a_node_that_a_record_wants_is_never_kept_out(
    where: str, asked: dict[str, Value], nodes: NodeAttributes, declarations: Declarations
) -> None:
    check(SITES[where], Record(values=tuple(sorted(asked.items()))), nodes, declarations)


#: Nothing of it is ever an error, which no language but the expression's own knows.
TEXTS_AND_TRUTHS = st.recursive(
    st.sampled_from(['s == "a"', 's != "a"', 's == "b"', "b", "b == false", "!b", 'l == "a"', "s == l"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda each: "({}) && ({})".format(*each)),
        st.tuples(inner, inner).map(lambda each: "({}) || ({})".format(*each)),
        inner.map("!({})".format),
        st.tuples(inner, inner, inner).map(lambda each: "({}) ? ({}) : ({})".format(*each)),
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(text=TEXTS_AND_TRUTHS)
def test_a_language_that_can_say_all_of_it_says_all_of_it(text: str) -> None:
    mapping = parse_mapping(
        {
            "Vocabulary": "HTCondor",
            "Attributes": {
                "s": {"equal": "Model"},
                "b": {"features": {True: "Outbound", False: "Private"}},
                "l": {"equal": "App"},
            },
        }
    )
    where = Site(
        mapping=mapping,
        numbers={},
        texts={"s": ("Model", {}), "l": ("App", {})},
        features={"Outbound": ("b", True), "Private": ("b", False)},
    )
    nodes = parse_node_attributes({"s": ["a", "b", "c"], "b": [True, False], "l": ["a", "b"]})
    arguments = check(where, Expression(text=text), nodes)
    decision = evaluator.decide_at_queue(Expression(text=text), {}, NOTHING_DECLARED, nodes)
    for facts in facts_of(nodes) if decision.undecided else ():
        fits = evaluator.eligible(Expression(text=text), facts, NOTHING_DECLARED)
        assert where.takes(arguments, facts) is fits, (arguments, facts)


@EVERY_SITE
@pytest.mark.parametrize(
    ("text", "enough"),
    [
        ("b", {"Slurm", "GridEngine", "PBS", "LSF", "HTCondor", "own"}),
        ("n >= 2", {"Slurm", "GridEngine", "PBS", "LSF", "HTCondor", "own"}),
        ("n > 2", {"LSF", "HTCondor"}),  # the others have only "at least"
        ("n >= 2.5", {"LSF", "HTCondor"}),
        ('s == "a" && n >= 2', {"Slurm", "GridEngine", "PBS", "LSF", "HTCondor", "own"}),
        ('s == "a" || n >= 2', set()),  # of unknown attributes only single comparisons are understood
        ('s != "a"', set()),
        ('regexp("^a", s)', set()),
        ('s =?= "a"', set()),  # batch systems compare without case
        ("n =?= 2", set()),
    ],
)
def test_flags_that_say_all_are_told_from_those_that_do_not(where: str, text: str, enough: set[str]) -> None:
    nodes = parse_node_attributes(dict.fromkeys(["n", "s", "b"], "unknown"))
    found = flags_of(text, nodes, SITES[where].mapping)
    assert found.sufficient is (where in enough), found


@pytest.mark.parametrize(
    ("text", "is_enough"),
    [
        ('Model == "P4"', True),
        ('Model != "PIII"', True),
        ('regexp("^P", Model)', True),
        ("RAM > 2000.5", True),
        ("RAM > 2000.5 && RAM < 3000", False),  # there is no flag for "at most"
        ('Model == "P4" || RAM > 2000', False),  # nor one for both kinds of nodes
        ('Model =!= "PIII"', False),  # a node without a model would do
    ],
)
def test_listed_values_are_tried(text: str, is_enough: bool) -> None:
    nodes = parse_node_attributes({"Model": ["PIII", "P4", None], "RAM": [1000, 2000, 2500, 4000]})
    mapping = parse_mapping({"Vocabulary": "Slurm", "Attributes": ATTRIBUTES["Slurm"]})
    assert flags_of(text, nodes, mapping).sufficient is is_enough


def test_nothing_is_said_of_more_combinations_than_are_tried(caplog: pytest.LogCaptureFixture) -> None:
    values = {name: [f"{name}{n}" for n in range(200)] for name in "ABC"}
    features = {name: {"features": {each: each for each in of}} for name, of in values.items()}
    mapping = parse_mapping({"Vocabulary": "Slurm", "Attributes": features})
    text = 'size(strcat(A, B, C)) > 3 || A == "A1"'
    nodes = parse_node_attributes(values)

    decision = evaluator.decide_at_queue(Expression(text=text), {}, NOTHING_DECLARED, nodes)

    assert decision.eligible
    assert decision.undecided
    assert compile_flags(decision, mapping) == NodeFlags()
    assert text in caplog.text


def test_a_feature_of_several_values_is_not_enough_for_one_of_them() -> None:
    nodes = parse_node_attributes({"OS": ["el9.1", "el9.2", "el8"]})
    mapping = parse_mapping(
        {
            "Vocabulary": "Slurm",
            "Attributes": {"OS": {"features": {"el9.1": "rocky9", "el9.2": "rocky9", "el8": "rocky8"}}},
        }
    )
    for wanted, is_enough in (("el9.1", False), ("el8", True), (("el9.1", "el9.2"), True)):
        found = flags_of(Record(values=(("OS", wanted),)), nodes, mapping)
        assert found.sufficient is is_enough, wanted


ATTRIBUTES: dict[str, dict[str, object]] = {
    "Slurm": {
        "RAM": {"min": "mem"},
        "CPU": {"min": "time"},
        "GPU": {"min": "gpu"},
        "Model": {"features": {"PIII": "p3", "P4": "p4"}},
        "OutboundIP": {"feature": "outbound"},
    },
    "HTCondor": {
        "RAM": {"min": "Memory", "max": "Memory"},
        "CPU": {"min": "MaxCpuTime"},
        "GPU": {"min": "GPUs"},
        "Model": {"equal": "Model"},
        "OutboundIP": {"feature": "Outbound"},
    },
}
ALL_UNKNOWN = parse_node_attributes(
    dict.fromkeys(["RAM", "CPU", "GPU", "Model", "OutboundIP", "fast"], "unknown")
)


def told(vocabulary: str, text: str, nodes: NodeAttributes = ALL_UNKNOWN, **known: Value) -> tuple[str, ...]:
    mapping = parse_mapping({"Vocabulary": vocabulary, "Attributes": ATTRIBUTES[vocabulary]})
    return flags_of(text, nodes, mapping, **known).arguments


def condor(text: str) -> tuple[str, ...]:
    return ("-append", f"requirements = {text}")


@pytest.mark.parametrize(
    ("text", "slurm", "htcondor"),
    [
        # both bounds of a conjunction
        ("RAM > 2000 && CPU > 60", "--mem=2000M --time=60", "TARGET.MaxCpuTime > 60 && TARGET.Memory > 2000"),
        # a disjunction is not both of its sides, and a negated bound is not inverted
        ("RAM > 2000 || GPU == 1", "", "TARGET.GPUs >= 1 || TARGET.Memory > 2000"),
        ("!(RAM > 8000)", "", "TARGET.Memory <= 8000"),
        # of two arms the weaker bound, and of two bounds the stronger, in either order
        ("fast ? CPU > 1000 : CPU > 2000", "--time=1000", "TARGET.MaxCpuTime > 1000"),
        ("fast ? CPU > 2000 : CPU > 1000", "--time=1000", "TARGET.MaxCpuTime > 1000"),
        ("RAM>1000 && RAM>2000", "--mem=2000M", "TARGET.Memory > 2000"),
        ("RAM>2000 && RAM>1000", "--mem=2000M", "TARGET.Memory > 2000"),
        # real numbers, booleans, and an inequality where it can be said, are not lost
        ("RAM > 2000.5", "--mem=2000M", "TARGET.Memory > 2000.5"),
        ("OutboundIP == true", "--constraint=outbound", "TARGET.Outbound =?= true"),
        ('Model != "PIII"', "", 'TARGET.Model != "PIII"'),
        # a regular expression over anything is not said, and a constant is computed first
        ('regexp("^P", Model)', "", None),
        ("RAM > 1000*2", "--mem=2000M", "TARGET.Memory > 2000"),
    ],
)
def test_what_naive_forwarding_gets_wrong(text: str, slurm: str, htcondor: str | None) -> None:
    assert told("Slurm", text) == tuple(slurm.split())
    assert told("HTCondor", text) == (() if htcondor is None else condor(htcondor))


@pytest.mark.parametrize(
    ("text", "slurm"),
    [
        ('Model != "PIII"', ("--constraint=p4",)),
        ('regexp("^P", Model)', ("--constraint=p3|p4",)),
        ("RAM > 2000.5", ("--mem=4000M",)),
        ("RAM * 2 > 3000", ("--mem=2000M",)),
        ("RAM > 500", ()),
        ('Model =!= "PIII"', ()),  # a node without a model would do, and no flag says that
        ("RAM + CPU > 100000", ()),
    ],
)
def test_few_values_make_stronger_flags(text: str, slurm: tuple[str, ...]) -> None:
    nodes = parse_node_attributes(
        {"Model": ["PIII", "P4", None], "RAM": [1000, 2000, 4000], "CPU": "unknown"}
    )
    assert told("Slurm", text, nodes) == slurm


EXAMPLE = (
    "other.GlueHostBenchmarkSI00 > 500 ? other.GlueCEPolicyMaxCPUTime > 1000 "
    ": other.GlueCEPolicyMaxCPUTime > 2000"
)


@pytest.mark.parametrize(
    ("known", "nodes", "arguments"),
    [
        ({"GlueHostBenchmarkSI00": 400}, ["GlueCEPolicyMaxCPUTime"], ("--time=2000",)),
        ({"GlueHostBenchmarkSI00": 600}, ["GlueCEPolicyMaxCPUTime"], ("--time=1000",)),
        ({}, ["GlueCEPolicyMaxCPUTime", "GlueHostBenchmarkSI00"], ("--time=1000",)),
    ],
)
def test_a_condition_on_what_varies_says_what_both_arms_need(
    known: dict[str, Value], nodes: list[str], arguments: tuple[str, ...]
) -> None:
    mapping = parse_mapping(
        {"Vocabulary": "Slurm", "Attributes": {"GlueCEPolicyMaxCPUTime": {"min": "time", "unit": "min"}}}
    )
    unknown = parse_node_attributes(dict.fromkeys(nodes, "unknown"))
    assert flags_of(EXAMPLE, unknown, mapping, **known).arguments == arguments
    assert are_flags(arguments)


@pytest.mark.parametrize(
    "model", ["P4; rm -rf /", "$(reboot)", "`id`", "--wrap=id", 'a" || "a', "", "a,b=c", "ä"]
)
@pytest.mark.parametrize("vocabulary", ["GridEngine", "LSF", "HTCondor"])
def test_a_text_that_could_mean_something_else_is_never_said(vocabulary: str, model: str) -> None:
    mapping = parse_mapping({"Vocabulary": vocabulary, "Attributes": {"Model": {"equal": "model"}}})
    nodes = parse_node_attributes({"Model": "unknown"})
    for asked in (model, (model, "P4")):
        assert flags_of(Record(values=(("Model", asked),)), nodes, mapping).arguments == ()


def test_many_alternatives_still_say_what_they_have_in_common() -> None:
    text = " || ".join(f'(RAM > {1000 + step} && Model == "M{step}" && CPU > {step})' for step in range(7))
    assert told("Slurm", text) == ("--mem=1000M",)
    deep = " && ".join(f'(Model == "M{step}" || GPU > {step} || OutboundIP)' for step in range(40))
    assert told("Slurm", f"({deep}) && RAM > 10") == ("--mem=10M",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RAM > 2000 || RAM >= 2000", "TARGET.Memory >= 2000"),
        ("RAM > 2000 && RAM >= 2000", "TARGET.Memory > 2000"),
        ("RAM < 2000 || RAM <= 2000", "TARGET.Memory <= 2000"),
        ("RAM < 2000 && RAM <= 2000", "TARGET.Memory < 2000"),
        ("RAM > 2000 && RAM < 4000", "TARGET.Memory > 2000 && TARGET.Memory < 4000"),
        ("RAM == 2000", "TARGET.Memory <= 2000 && TARGET.Memory >= 2000"),
        ("RAM > 0.0001", "TARGET.Memory > 0"),
        ("RAM < 1e20", "TARGET.Memory < 100000000000000000000"),
    ],
)
def test_bounds_are_as_exact_as_the_language_allows(text: str, said: str) -> None:
    assert told("HTCondor", text) == condor(said)


def test_a_bound_of_zero_is_not_said_since_it_asks_for_everything() -> None:
    assert told("Slurm", "RAM > 0.5") == told("Slurm", "RAM >= -5") == ()


def test_equal_requirements_have_equal_flags_in_one_order() -> None:
    one = told("Slurm", 'RAM > 10 && CPU > 60 && OutboundIP && Model == "P4"')
    assert one == ("--mem=10M", "--time=60", "--constraint=outbound&p4")
    assert told("Slurm", 'Model == "P4" && OutboundIP && CPU > 60 && RAM > 10') == one


@pytest.mark.parametrize(
    "arguments",
    [
        ("--output=/home/director/.ssh/authorized_keys",),
        ("--mem=1000M", "--wrap=sh"),
        ("--mem=1000M --wrap=sh",),
        ("--constraint=a\n--wrap=sh",),
        ("-append", "transfer_input_files = /etc/passwd"),
        ("-append", "requirements = $ENV(HOME)"),
        ("-append", "requirements = true\nexecutable = /bin/sh"),
        ("-append", "requirements = TARGET.a) || (TARGET.b"),
        ("-append", 'requirements = TARGET.a == ")" || (TARGET.b'),
        ("-append", 'requirements = TARGET.a == "'),
        ("-R", "select[mem>1] span[hosts=1]"),
        ("-l",),
        ("/bin/sh",),
        ("--mem=1000M", "-l", "h_rt=3600"),
    ],
)
def test_other_arguments_are_no_flags(arguments: tuple[str, ...]) -> None:
    assert not are_flags(arguments)
    assert not are_flags(arguments, [parse_vocabulary(OWN)])


def test_flags_of_one_language_are_none_of_another() -> None:
    own = parse_vocabulary(OWN)
    for arguments, language in (
        (("ENV/EL9-1.0",), ARC),
        (("--constraint=el9",), SLURM),
        (("--least", "memory:4000", "--with=el9", "--is", "model:P4"), own),
    ):
        assert [are_flags(arguments, [each]) for each in (ARC, SLURM, own)] == [
            each is language for each in (ARC, SLURM, own)
        ]
    assert not are_flags(("ENV/EL9-1.0",)), "it would be the name of a script"
    assert not are_flags(("--is", "model:$(reboot)"), [own])


def test_runtime_environments_of_a_ce_are_features() -> None:
    mapping = parse_mapping(
        {"Vocabulary": "ARC", "Attributes": {"OS": {"features": {"el8": "ENV/EL8", "el9": "ENV/EL9"}}}}
    )
    nodes = parse_node_attributes({"OS": ["el8", "el9"], "Memory": "unknown"})
    found = flags_of('OS == "el9"', nodes, mapping)
    assert found == NodeFlags(arguments=("ENV/EL9",), sufficient=True)
