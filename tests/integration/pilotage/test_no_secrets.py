"""No log, no answer and no message of a command shows a secret, at the level that says most."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from sqlalchemy import make_url

from examples.servers.postgres import Postgres
from pilotage.cli import application, engine
from pilotage.service.auth import keys
from pilotage.service.auth.callers import grant
from pilotage.service.auth.tokens import Tokens
from pilotage.service.services import utc_now
from tests.support.installation import Installation
from tests.support.routes_by_role import QUEUE, TOKENS

DATABASE_PASSWORD = "db-horse-battery-staple"
REDIS_PASSWORD = "redis-horse-battery-staple"
LINK = "one-time-horse-battery"
GRID = """
Resources: {Sites: {LCG.A.org: {VO: [cms], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}}}
Registry: {VO: {cms: {}}, Groups: {cms_user: {VO: cms}}}
"""


@dataclass
class Conversation:
    """With a service whose PostgreSQL and Redis have passwords; all that was said is in `said`."""

    home: Path
    url: str
    said: list[str] = field(default_factory=list)

    @property
    def log(self) -> str:
        return (self.home / "service.log").read_text()

    def token(self, role: str, **wishes: Any) -> str:
        tokens = Tokens(keys.load(self.home / "signing-key.pem"))
        return tokens.mint(grant(role=role, **wishes), now=utc_now())[0]

    def ask(self, method: str, path: str, token: str, **more: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.request(method, self.url + path, headers=headers, trust_env=False, timeout=300, **more)  # type: ignore[arg-type]
        self.said += [answer.text, str(answer.headers)]
        return answer


@pytest.fixture(scope="module")
def conversation(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    home = tmp_path_factory.mktemp("home")
    (home / "grid.yaml").write_text(GRID)
    with ExitStack() as stack:
        plain = make_url(stack.enter_context(postgres.fresh()))
        url = plain.set(password=DATABASE_PASSWORD).render_as_string(hide_password=False)
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "PILOTAGE_HOME": str(home),
            "PILOTAGE_DATABASE_URL": url,
            # Nobody listens there: what is said of a Redis that is away shall not say how one gets in.
            "PILOTAGE_REDIS_URL": f"redis://worker:{REDIS_PASSWORD}@127.0.0.1:9/0",
            "PILOTAGE_LOG_LEVEL": "debug",
        }
        engine.upgrade_schema(url)
        installation = Installation(home, environment, stack)
        yield Conversation(
            home, installation.serve("service", "--resources", str(home / "grid.yaml"), "--json")
        )


def test_nothing_that_is_said_shows_a_secret(conversation: Conversation):
    secrets = [DATABASE_PASSWORD, REDIS_PASSWORD, LINK]
    for role, wishes in TOKENS.items():
        token = conversation.token(role, **wishes)
        secrets.append(token)
        for path in ("/api/v1/jobs", "/api/v1/nowhere", "/metrics", "/api/v1/config"):
            conversation.ask("GET", path, token)
        conversation.ask("GET", "/api/v1/jobs", token + "x")
        conversation.ask("POST", "/api/v1/tokens/revoke", token, json={"token": "nonsense"})
    secrets += _of_a_pilot(conversation)
    _strangers(conversation)
    said = [*conversation.said, conversation.log]
    assert '"GET' in said[-1], "the log says nothing of requests: the test would see nothing"
    shown = {secret for secret in secrets for text in said if secret in text}
    assert not shown


def _of_a_pilot(conversation: Conversation) -> list[str]:
    """A pilot's secret, exchanged, shown a second time, and wrong ones."""
    director = conversation.token("director", vo="cms", site="LCG.A.org")
    body = {"stamp": "s1", "queue": QUEUE, "secret": True}
    headers = {"Authorization": f"Bearer {director}"}
    registered = httpx.post(
        f"{conversation.url}/api/v1/pilots", json=body, headers=headers, trust_env=False, timeout=300
    )
    secret = registered.json()["secret"]
    exchange = f"{conversation.url}/api/v1/pilots/s1/token"
    for shown in (secret, secret, "wrong" + secret):
        answer = httpx.post(
            exchange,
            json={"request_id": str(uuid4())},
            headers={"Authorization": f"Bearer {shown}"},
            trust_env=False,
            timeout=300,
        )
        if answer.is_success:
            token = answer.json()["token"]
        else:
            conversation.said.append(answer.text)
    renewed = httpx.post(
        f"{conversation.url}/api/v1/tokens/renew",
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
        timeout=300,
    ).json()["token"]
    return [director, secret, token, renewed]


def _strangers(conversation: Conversation) -> None:
    """What browsers bring in the query of a page: links and codes that are good once."""
    for path in (f"/login/link?secret={LINK}", f"/login/callback?code={LINK}&state={LINK}", f"/?a={LINK}"):
        answer = httpx.get(conversation.url + path, trust_env=False, timeout=300)
        conversation.said.append(answer.text)


WRONG = [
    f"mysql://pilotage:{DATABASE_PASSWORD}@db/pilotage",
    f"postgresql://pilotage:{DATABASE_PASSWORD}@127.0.0.1:9/pilotage",
    f"postgresql://pilotage:{DATABASE_PASSWORD}@[::1/pilotage",
    f"postgresql//pilotage:{DATABASE_PASSWORD}@db/pilotage",
    f"redi://worker:{REDIS_PASSWORD}@127.0.0.1:9",
    f"redis://worker:{REDIS_PASSWORD}@127.0.0.1:port",
    f"redis://worker:{REDIS_PASSWORD}@127.0.0.1:9",
]


@pytest.mark.parametrize("url", WRONG)
def test_commands_tell_what_is_wrong_with_an_address_without_its_password(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PILOTAGE_HOME", str(tmp_path))
    name = "REDIS_URL" if url.startswith("redi") else "DATABASE_URL"
    monkeypatch.setenv(f"PILOTAGE_{name}", url)
    for words in (["db", "check"], ["doctor", "--json"]):
        with pytest.raises(SystemExit):
            application.main(words)
    said = "".join(capsys.readouterr())
    assert DATABASE_PASSWORD not in said
    assert REDIS_PASSWORD not in said
    assert "pilotage" in said
