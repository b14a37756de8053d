"""The service that tests talk to."""

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from fastapi import FastAPI

from tests.support.service import served


def test_who_connects_before_the_server_has_started_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_starts(_server: uvicorn.Server, _sockets: Any) -> None: ...

    monkeypatch.setattr(uvicorn.Server, "run", never_starts)
    with served(FastAPI()) as url:
        address = urlsplit(url)
        socket.create_connection((address.hostname, address.port)).close()
