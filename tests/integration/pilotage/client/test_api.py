"""The token that a client shows, and the proxy that it uses."""

from pathlib import Path

import pytest

from pilotage.cli.processes.token_file import TokenFile
from pilotage.client.api import ApiError, ServiceClient
from pilotage.fabric.director.configuration import InvalidDirector
from tests.support.servers.http_proxy import ForwardProxy
from tests.support.service import Service


def tokens(directory: Path, token: str) -> TokenFile:
    file = directory / "cms.token"
    file.write_text(token)
    return TokenFile(file=file, kept=directory / "cms.token.renewed", invalid=InvalidDirector)


def test_a_token_that_is_refused_is_named_until_its_file_is_replaced(
    service: Service, tmp_path: Path
) -> None:
    shown = tokens(tmp_path, "expired")

    with ServiceClient(service.url, shown, whose="vos/cms/token_file: /etc/cms.token") as director:
        with pytest.raises(ApiError, match=r"^vos/cms/token_file: /etc/cms\.token: ") as refused:
            director.sites()
        shown.file.write_text(service.token("director", vo="cms"))
        director.sites()

    assert refused.value.status == 401


def test_a_director_renews_its_token_and_goes_on_with_the_given_one_if_that_is_revoked(
    service: Service, tmp_path: Path
) -> None:
    first = service.token("director", vo="cms", user="dora", ttl=3600)
    shown = tokens(tmp_path, first)
    with ServiceClient(service.url, shown) as director:
        shown.clock = lambda: 4e9
        director.renew_token()
        renewed = shown()
        assert renewed != first
        service.operator().post("/api/v1/tokens/revoke", json={"token": renewed})
        with pytest.raises(ApiError, match="revoked"):
            director.sites()

        shown.file.write_text(service.token("director", vo="cms", user="dora", ttl=3600))
        director.sites()


def test_a_client_uses_the_proxy_that_is_named(service: Service) -> None:
    with (
        ForwardProxy() as proxy,
        ServiceClient(service.url, service.token("director", vo="cms"), proxy=proxy.url) as client,
    ):
        client.sites()

    assert len(proxy.asked) == 1


def test_a_proxy_of_the_environment_never_sees_a_token_in_plain_text(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    with ServiceClient(service.url, service.token("director", vo="cms")) as client:
        client.sites()
