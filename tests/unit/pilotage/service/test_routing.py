import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.options import bounds
from pilotage.service import routing
from requirements.errors import InvalidRequest

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_harmless_is_read_as_it_is(value: object):
    assert routing.parse(json.dumps(value).encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes):
    try:
        routing.parse(body)
    except InvalidRequest as refused:
        json.dumps(dict(refused.details)).encode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b'{"a": NaN}', "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"[1e999]", "too large"),
        (b"[99999999999999999999]", "64 bit"),
        (b"[" + b"9" * 5000 + b"]", "body"),
        (b'{"a": "\\u0000"}', "NUL"),
        (b'{"\\u0000": 1}', "NUL"),
        (b'{"a": "\\ud800"}', "Unicode"),
        (b'{"a": ["\\udfff"]}', "Unicode"),
        (b'"\xff"', "UTF-8"),
        (b"{", "line 1|JSON"),
        (b"[" * 100_000, "JSON|nested"),
        (b"[" * 100 + b"]" * 100, "64 levels"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "nested"),
    ],
)
def test_what_could_do_harm_is_refused(body: bytes, message: str):
    with pytest.raises(InvalidRequest, match=message) as refused:
        routing.parse(body)
    # The answer itself has to be storable, loggable, and fit for UTF-8.
    assert "\0" not in json.dumps(dict(refused.value.details), ensure_ascii=False)
    json.dumps(dict(refused.value.details), ensure_ascii=False).encode()


@pytest.mark.parametrize("value", [b"[]", b"{}", b'{"a":1}', b'""', b"1"])
def test_values_beyond_a_number_are_refused_before_they_take_memory(value: bytes):
    body = b"[" + b",".join([value] * (bounds.JSON_VALUES + 1)) + b"]"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"allowed"):
            routing.parse(body)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_punctuation_of_texts_is_none_of_values():
    text = 'Executable = "/bin/ls"; InputData = {"a", "b"};' * 100_000
    assert routing.parse(json.dumps([text]).encode()) == [text]


def test_problems_are_named_by_their_place_and_bounded_in_number():
    body = json.dumps({"jobs": [{"name": "\0"}] * 1000}).encode()
    with pytest.raises(InvalidRequest) as refused:
        routing.parse(body)
    assert refused.value.problems[0].path == "jobs[0]/name"
    assert len(refused.value.problems) == 50


_ODD = st.sampled_from(
    ["\\u0000", "\\ud800", "1e999", "9" * 19, "-" + "9" * 19, "1E5", "[" * 70 + "]" * 70, '"é"']
)


@given(VALUES, _ODD, st.integers(0, 200))
def test_what_looks_plain_needs_no_second_look(value: object, odd: str, where: int):
    """Whatever is put in anywhere: if the bytes look plain and are JSON, nothing in them is wrong."""
    text = json.dumps(value, ensure_ascii=False)
    body = (text[:where] + odd + text[where:]).encode(errors="surrogatepass")
    try:
        found = json.loads(body)
    except ValueError:
        return
    if routing.is_plain(body):
        assert not list(routing._problems(found, "", 0))


def test_what_is_nested_as_deep_as_may_be_looks_plain_and_one_level_more_does_not():
    assert routing.is_plain(b"[" * 64 + b"]" * 64)
    assert not routing.is_plain(b"[" * 65 + b"]" * 65)
    assert not routing.is_plain(b'{"a": "\\u0000"}')
    assert routing.is_plain(b'{"id": "3e91ab9e5"}')
