"""The token that a client shows."""

import pytest

from pilotage.fabric.client import ApiError, ServiceClient
from tests.running_service import Service


def test_each_request_shows_the_token_of_that_moment(service: Service) -> None:
    shown = [service.token("director", vo="cms"), "expired"]

    with ServiceClient(service.url, shown.pop, whose="vos/cms/token_file: /etc/cms.token") as director:
        with pytest.raises(ApiError, match=r"^vos/cms/token_file: /etc/cms\.token: ") as refused:
            director.sites()
        director.sites()

    assert refused.value.status == 401
    assert shown == []
