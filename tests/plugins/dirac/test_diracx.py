"""The routes of DiracX at the door; the claims of the tokens are given, as if they were verified."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from pilotage.plugins.dirac.app import create_door
from pilotage.service.auth.oidc.issuer import Issuer
from pilotage.service.auth.oidc.issuers import Issuers, TrustedIssuer
from pilotage.service.http_errors import NotAuthenticated
from tests.plugins.dirac.test_app import (
    CONFIG,
    JDL,
    MANAGER,
    MATCHER,
    RESOURCE,
    UPDATE,
    Ask,
    asking,
    chains,
    status,
    value,
)
from tests.support.service import running

__all__ = ["chains"]

ADA = {"preferred_username": "ada", "dirac_group": "lhcb_user", "vo": "lhcb", "sub": "lhcb:ada"}
GOOD = "good"


class ReadIssuer(TrustedIssuer):
    """An issuer with one good token."""

    async def read(self, text: str, *, now: datetime) -> tuple[str, Mapping[str, object]]:  # noqa: ARG002
        if text != GOOD:
            raise NotAuthenticated("the token is not good")
        return "id", ADA

    def refresh(self) -> None:
        """It has no keys."""


class OneIssuer(Issuers):
    """This issuer, whatever a token names."""

    def __init__(self) -> None:
        self.issuer = ReadIssuer(Issuer(name="x", url="https://x", audiences=frozenset(), is_diracx=True))
        super().__init__([self.issuer])

    def find(self, text: str) -> TrustedIssuer:  # noqa: ARG002
        return self.issuer


@dataclass
class Door:
    """A door, with calls by certificates and reports by tokens."""

    ask: Ask
    report: Callable[..., httpx.Response]
    issuer: TrustedIssuer


@pytest.fixture
def door(engine: Engine, tmp_path: Path, chains: dict[str, tuple[str, ...]]) -> Iterator[Door]:
    issuers = OneIssuer()
    with running(engine, tmp_path, CONFIG, issuers=issuers) as service:
        app = create_door(service.parts)

        def report(what: str, body: object, *, token: str = GOOD, address: str = "10.0.0.1") -> Any:
            async def patch() -> httpx.Response:
                transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 1))
                async with httpx.AsyncClient(transport=transport, base_url="https://door") as client:
                    headers = {"Authorization": f"Bearer {token}"}
                    return await client.patch(f"/api/jobs/{what}", json=body, headers=headers)

            return asyncio.run(patch())

        yield Door(asking(app, chains), report, issuers.issuer)


def running_at(second: int, word: str = "Running") -> dict[str, dict[str, str]]:
    return {f"2100-01-01 00:00:0{second}": {"Status": word, "Source": "JobWrapper"}}


def test_a_rescheduled_job_runs_again_at_the_same_address(door: Door):
    job_id = value(door.ask("ada", MANAGER, "submitJob", JDL))
    for word in ("Failed", "Rescheduled"):
        value(door.ask("pia", MATCHER, "requestJob", RESOURCE))
        assert door.report("status", {job_id: running_at(1)}).status_code == 200
        assert door.report("heartbeat", {job_id: {}}).json() == []
        assert status(door.ask, job_id) == "Running"
        assert door.report("status", {job_id: running_at(2, word)}).status_code == 200
        value(door.ask("ada", MANAGER, "rescheduleJob", job_id, address="10.0.0.9"))
    value(door.ask("pia", MATCHER, "requestJob", RESOURCE))
    assert door.report("heartbeat", {job_id: {}}).json() == []
    assert value(door.ask("ada", UPDATE, "sendHeartBeat", job_id, {}, {})) == {}


def test_a_ghost_at_another_address_is_ended_and_changes_nothing(door: Door):
    job_id = value(door.ask("ada", MANAGER, "submitJob", JDL))
    value(door.ask("pia", MATCHER, "requestJob", RESOURCE))
    assert door.report("heartbeat", {job_id: {}}).json() == []
    value(door.ask("ada", MANAGER, "rescheduleJob", job_id, address="10.0.0.9"))
    value(door.ask("pia", MATCHER, "requestJob", RESOURCE, address="10.0.0.2"))
    door.report("status", {job_id: running_at(1, "Failed")})
    [command] = door.report("heartbeat", {job_id: {}}).json()
    assert command["command"] == "Kill"
    assert status(door.ask, job_id) == "Matched"
    assert door.report("heartbeat", {job_id: {}}, address="10.0.0.2").json() == []


def test_an_issuer_of_one_vo_is_for_that_only(door: Door):
    job_id = value(door.ask("ada", MANAGER, "submitJob", JDL))
    value(door.ask("pia", MATCHER, "requestJob", RESOURCE))
    door.issuer.issuer = replace(door.issuer.issuer, vo="dune")
    assert door.report("status", {job_id: running_at(1)}).status_code == 401
    assert status(door.ask, job_id) == "Matched"
    door.issuer.issuer = replace(door.issuer.issuer, vo="lhcb")
    assert door.report("status", {job_id: running_at(1)}).status_code == 200


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_wrong_tokens_are_counted_and_cost_good_ones_nothing(door: Door):
    assert {door.report("heartbeat", {}, token="bad").status_code for _ in range(150)} == {401, 429}
    assert {door.report("heartbeat", {}).status_code for _ in range(150)} == {200}
