"""Which proxy a pilot goes through."""

import pytest

from pilotage.fabric.pilot.service import transport

TLS, PLAIN = "https://pilotage.example.org/x", "http://pilotage.example.org:8080"


@pytest.mark.parametrize(
    ("url", "environment", "expected"),
    [
        (TLS, {}, None),
        (TLS, {"HTTPS_PROXY": "http://p.example.org:8080"}, ("p.example.org", 8080)),
        (TLS, {"https_proxy": "p.example.org"}, ("p.example.org", 3128)),
        (TLS, {"https_proxy": "http://small:1", "HTTPS_PROXY": "http://large:1"}, ("small", 1)),
        (TLS, {"HTTP_PROXY": "http://p:1"}, None),
        (PLAIN, {"HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "http://q:1"}, ("p", 1)),
        (TLS, {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other.org,.example.org"}, None),
        (TLS, {"HTTPS_PROXY": "http://p:1", "no_proxy": "*"}, None),
        (TLS, {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other.org"}, ("p", 1)),
        (TLS, {"HTTPS_PROXY": ""}, None),
    ],
)
def test_the_environment_names_it(url, environment, expected):
    found = transport.choose_proxy(url, None, environment)
    assert (found and (found.host, found.port)) == expected


def test_what_is_said_wins():
    environment = {"HTTPS_PROXY": "http://p:1"}
    assert transport.choose_proxy(TLS, "none", environment) is None
    assert transport.choose_proxy(TLS, "http://q:2", {**environment, "NO_PROXY": "*"}) == transport.Proxy(
        "q", 2, {}
    )


def test_a_name_and_a_password_are_shown_to_it():
    found = transport.choose_proxy(TLS, "http://me:p%40ss@q:2", {})
    assert found is not None
    assert found.headers == {"Proxy-Authorization": "Basic bWU6cEBzcw=="}


@pytest.mark.parametrize(
    "address", ["socks5://me:secret@q:1", "http://", "http://me:secret@q:port", "https://q"]
)
def test_what_is_no_proxy_is_told_without_the_password(address):
    with pytest.raises(ValueError, match="not a proxy address") as caught:
        transport.choose_proxy(TLS, address, {})
    assert "secret" not in str(caught.value)
