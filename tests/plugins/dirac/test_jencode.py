import json
import tracemalloc
from contextlib import suppress
from datetime import UTC, date, datetime
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.plugins.dirac import jencode
from requirements.errors import InvalidRequest

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec="ascii", min_codepoint=32)), inner)
    ),
    max_leaves=20,
)


def form(**fields: str) -> bytes:
    return urlencode(fields).encode()


@given(JSON)
def test_values_come_back_as_they_were(value: object):
    assert jencode.decode(jencode.encode(value).decode()) == value


def test_moments_days_and_bytes_have_their_forms():
    value = [datetime(2026, 11, 22, 12, 0, 1, tzinfo=UTC), date(2026, 11, 22), b"\0\xff"]
    text = jencode.encode(value).decode()
    assert '{"__dCls": "dt", "obj": "2026-11-22 12:00:01"}' in text
    assert jencode.decode(text) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"__dCls": "Job", "__dMod": "os", "obj": "x"}',
        '{"__dCls": "Client", "__dMod": "DIRAC.Core.Base.Client"}',
        '[{"a": {"__dCls": "dict", "__dMod": "builtins"}}]',
        '{"__dCls": null}',
        '{"__dCls": ["dt"], "obj": "2026-11-22 12:00:00"}',
        '{"__dCls": "dt"}',
        '{"__dCls": "dt", "obj": 5}',
        '{"__dCls": "dt", "obj": "yesterday"}',
        '{"__dCls": "b64", "obj": "*"}',
        "9" * 19,
        "9" * 5000,
        "[" * 70 + "]" * 70,
        "[" * 100_000,
        "{",
        "",
    ],
)
def test_nothing_else_is_decoded(text: str):
    with pytest.raises(InvalidRequest):
        jencode.decode(text)


def test_what_cannot_be_stored_is_replaced():
    text = '[NaN, -Infinity, 1e999, {"a\\u0000b": "c\\u0000\\ud800d"}, "\\ud83d\\ude00"]'
    assert jencode.decode(text) == [None, None, None, {"a\ufffdb": "c\ufffd\ufffdd"}, "\U0001f600"]


def test_no_module_is_imported_for_a_class(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imports {name}"))
    with pytest.raises(InvalidRequest, match="is none of dt, date, b64"):
        jencode.decode('{"__dCls": "Popen", "__dMod": "subprocess"}')


def test_a_form_has_a_method_arguments_and_credentials():
    read = jencode.read_form(form(method="killJob", args="[[1, 2]]", clientVO="lhcb", clientSetup="None"))
    assert (read.method, read.arguments, read.credentials) == ("killJob", ([1, 2],), None)
    forwarded = jencode.read_form(form(method="m", args="[]", extraCredentials='["/CN=ada", "lhcb_user"]'))
    assert forwarded.credentials == ("/CN=ada", "lhcb_user")
    assert jencode.read_form(form(method="m", extraCredentials='"hosts"')).credentials == "hosts"


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"method",
        form(method="m", args="{}"),
        form(method="m", args="5"),
        form(method="m", extraCredentials="[1, 2]"),
        form(method="m", extraCredentials='["a", "b", "c"]'),
        form(**{f"field{number}": "" for number in range(100)}),
    ],
)
def test_what_is_no_form_is_refused(body: bytes):
    with pytest.raises(InvalidRequest):
        jencode.read_form(body)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=3))
def test_forms_are_read_as_they_were_written(arguments: list[str]):
    read = jencode.read_form(form(method="m", args=json.dumps(arguments, ensure_ascii=False)))
    assert read.arguments == tuple(each.replace("\0", "\ufffd") for each in arguments)


@pytest.mark.parametrize(
    "body",
    [b"args=" + b"%41" * 1_300_000, b"args=[" + b"[]," * 1_300_000 + b"1]", b"args=" + b"=" * 2_000_000],
)
def test_a_form_that_is_refused_took_little_memory(body: bytes):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            jencode.read_form(body)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_form_or_refused(body: bytes):
    with suppress(InvalidRequest):
        jencode.read_form(body)


def test_refusals_look_like_those_of_dirac():
    assert jencode.error("no_task_queue", jencode.NO_MATCH) == {
        "OK": False,
        "Errno": 1510,
        "Message": "No match found ( 1510 : no_task_queue)",
    }
    assert jencode.error("job 5 is gone") == {
        "OK": False,
        "Errno": 0,
        "Message": "job 5 is gone",
    }
    assert jencode.ok([1], requireProxyUpload=True) == {"OK": True, "Value": [1], "requireProxyUpload": True}
