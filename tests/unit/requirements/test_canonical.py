import hashlib
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from requirements import evaluator
from requirements.canonical import canonical, from_json, pool_form, pool_id, to_json
from requirements.classad.expression import Expression, parse_expression
from requirements.classad.restrictions import MAX_SIZE
from requirements.errors import InvalidInput
from requirements.record import Declarations, Record, parse_record
from requirements.values import MAX_INTEGER, fold

RFC_JOB: dict[str, object] = {
    "SoftwareTag": ["AppVersion1", "AppVersion2"],
    "CPUModel": "Intel Xeon",
    "Memory": 4000,
}
GLITE = (
    "other.GlueHostBenchmarkSI00 > 500"
    " ? other.GlueCEPolicyMaxCPUTime > 1000 : other.GlueCEPolicyMaxCPUTime > 2000"
)


def record(raw: dict[str, object]) -> Record:
    return parse_record(raw, Declarations())


# These ids are stored in databases of installations: a change here loses their pools.
KNOWN = [
    (
        record(RFC_JOB),
        "lhcb",
        '{"cpumodel":"intel xeon","memory":4000,"softwaretag":["appversion1","appversion2"]}',
        "RFC",
    ),
    (
        record({"b": True, "a": [2.5, "Z", False, 10, 9, "\u00c9t\u00e9"], "c": 0.1, "d": -0.0}),
        "Biomed",
        '{"a":[false,2.5,9,10,"z","\u00e9t\u00e9"],"b":true,"c":0.1,"d":0}',
        "MIXED",
    ),
    (
        Expression(text=GLITE),
        "EGEE",
        (
            '"gluecepolicymaxcputime > 1000 && gluehostbenchmarksi00 > 500'
            ' || gluecepolicymaxcputime > 2000 && gluehostbenchmarksi00 <= 500"'
        ),
        "GLITE",
    ),
]
IDS = {
    "RFC": "18b2eff947e5be9766ca3a4eb2b37bd967aa190327c3f89e29acdba5ef9e7faa",
    "MIXED": "645f7aefea38c843f533687b4ea70e6953aaadc23db566651d28ae88e112dc74",
    "GLITE": "a9956f5f1afe39cd47fd2d496057c2104388f2c57fc35a99d36d9d4a4233a18a",
}


@pytest.mark.parametrize(("requirements", "vo", "asked", "name"), KNOWN)
def test_known_requirements_have_known_ids(
    requirements: Record | Expression, vo: str, asked: str, name: str
) -> None:
    form = f'{{"requirements":{asked},"v":1,"vo":"{vo.lower()}"}}'.encode()
    assert canonical(requirements, vo) == form
    assert pool_id(requirements, vo) == hashlib.sha256(form).hexdigest() == IDS[name]


def test_another_process_with_another_hash_seed_gives_the_same_id() -> None:
    program = (
        "from requirements.canonical import pool_id; from requirements.record import parse_record;"
        "from requirements.record import Declarations;"
        f"print(pool_id(parse_record({RFC_JOB!r}, Declarations()), 'lhcb'))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert answer.stdout.strip() == IDS["RFC"]


@pytest.mark.parametrize(
    "other",
    [
        {"memory": 4000.0, "cpumodel": "INTEL XEON", "SOFTWARETAG": ["AppVersion2", "AppVersion1"]},
        {
            "Memory": [4e3],
            "CPUModel": ["Intel Xeon"],
            "SoftwareTag": ["AppVersion1", "APPVERSION2", "appversion1"],
        },
    ],
)
def test_other_spellings_of_the_same_share_the_pool(other: dict[str, object]) -> None:
    assert pool_id(record(other), "LHCb") == IDS["RFC"]


@pytest.mark.parametrize(
    "other",
    [
        {**RFC_JOB, "Memory": 4001},
        {**RFC_JOB, "Memory": "4000"},
        {**RFC_JOB, "Disk": 1},
        {**RFC_JOB, "CPUModel": True},
        {**RFC_JOB, "SoftwareTag": "AppVersion1,AppVersion2"},
    ],
)
def test_other_requirements_have_another_pool(other: dict[str, object]) -> None:
    assert pool_id(record(other), "lhcb") != IDS["RFC"]


def test_another_vo_has_another_pool() -> None:
    assert pool_id(record(RFC_JOB), "atlas") != IDS["RFC"]


def test_true_is_not_one() -> None:
    assert pool_id(record({"x": True}), "v") != pool_id(record({"x": 1}), "v")


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
SCALARS = (
    TEXTS
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
)
RAW = st.dictionaries(
    TEXTS.filter(str.strip), SCALARS | st.lists(SCALARS, min_size=1), min_size=1, max_size=5
).filter(lambda raw: len({fold(name) for name in raw}) == len(raw))


@given(RAW, st.randoms(use_true_random=False))
def test_order_repetition_case_and_spelling_of_numbers_make_no_difference(
    raw: dict[str, Any], random: Any
) -> None:
    def respelled(value: Any) -> Any:
        if isinstance(value, list):
            items = [respelled(item) for item in [*value, random.choice(value)]]
            random.shuffle(items)
            return items
        if isinstance(value, str):
            return fold(value)
        is_integer = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_INTEGER
        return int(value) if is_integer else value

    names = list(raw)
    random.shuffle(names)
    other = {fold(name): respelled(raw[name]) for name in names}
    if not all(name.strip() for name in other):
        return
    assert canonical(record(raw), "VO") == canonical(record(other), "vo")


@given(RAW)
def test_a_stored_record_comes_back_in_its_own_spelling(raw: dict[str, Any]) -> None:
    stored = record(raw)
    back = from_json(to_json(stored))
    assert repr(back) == repr(stored)
    assert pool_id(back, "v") == pool_id(stored, "v")


def test_a_stored_expression_comes_back_in_its_own_spelling() -> None:
    stored = Expression(text="other.X  >  3 // caf\u00e9")
    assert from_json(to_json(stored)) == stored


@pytest.mark.parametrize(
    "other",
    [
        'TARGET.a>1&&( OTHER.B == "x" )',
        'A > 1 /* why */ && other.b == "x" // that',
        "((other.'a' > 1) && TARGET.b == \"\\170\")",
        'other.a > 1 && other.b == "" "x"',
        '"x" == other.b && !(other.a <= 1) && (1 < other.a)',
    ],
)
def test_spellings_that_nothing_can_tell_apart_share_the_pool_of_an_expression(other: str) -> None:
    one = Expression(text='other.A > 1 && other.B == "x"')
    assert pool_id(Expression(text=other), "v") == pool_id(one, "v")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5/2 == other.a", "5.0/2 == other.a"),
        ('other.a =?= "x"', 'other.a =?= "X"'),
        ("other.a - (other.b - other.c)", "other.a - other.b - other.c"),
        ("other.a", "!other.a"),
        ("other.'1'", "1"),
        ("other.'true'", "true"),
        ("(other.a ? true : false) || other.b", "other.a ? true : false || other.b"),
    ],
)
def test_expressions_that_may_differ_have_different_pools(one: str, other: str) -> None:
    assert pool_id(Expression(text=one), "v") != pool_id(Expression(text=other), "v")


def test_a_text_that_is_no_expression_has_no_identity() -> None:
    with pytest.raises(InvalidInput):
        pool_id(Expression(text="other.a >"), "v")


def test_all_spellings_of_a_pool_are_evaluated_as_one_text() -> None:
    one = Expression(text='other.Memory > 4e3 || member("x", other.Soft)')
    other = Expression(text='member("x",Soft) || TARGET.memory > 4000')
    assert pool_id(one, "lhcb") == pool_id(other, "lhcb")
    forms = [pool_form(each) for each in (one, other)]
    assert [str(each.text) for each in forms if isinstance(each, Expression)] == [
        'member("x", other.Soft) || other.Memory > 4000',
        'member("x", Soft) || TARGET.memory > 4000',
    ]
    ad = {"Memory": 2000, "Soft": ("x",)}
    assert all(evaluator.eligible(each, ad, Declarations.find(())) for each in forms)


def test_a_form_that_is_too_long_with_its_names_as_written_is_evaluated_without() -> None:
    name = "ParameterWithALongName" * 2
    text = "&&".join(f"other.{name}{number}>{number}" for number in range(340))
    assert len(text) < MAX_SIZE < len(text.replace("&&", " && ").replace(">", " > "))
    form = pool_form(parse_expression(text))
    assert isinstance(form, Expression)
    assert len(form.text) < MAX_SIZE
    assert evaluator.eligible(form, {f"{name}{number}": 500 for number in range(340)}, Declarations.find(()))


def test_the_form_of_a_form_is_itself() -> None:
    once = pool_form(Expression(text="other.A ? other.B > 1 : 5 < other.C"))
    assert pool_form(once) == once
