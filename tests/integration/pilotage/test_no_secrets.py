"""No log, no answer and no message of a command shows a secret, at the level that says most."""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
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
from tests.support import wait
from tests.support.processes import PILOTAGE
from tests.support.routes_by_role import QUEUE, TOKENS

DATABASE_PASSWORD = "db-horse-battery-staple"
REDIS_PASSWORD = "redis-horse-battery-staple"
LINK = "one-time-horse-battery"
GRID = """
Resources: {Sites: {LCG.A.org: {VO: [cms], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}}}
Registry: {VO: {cms: {}}, Groups: {cms_user: {VO: cms}}}
"""


@dataclass
class Installation:
    """A service with a PostgreSQL and a Redis that have passwords; all that was said is in `said`."""

    home: Path
    environment: dict[str, str]
    url: str
    said: list[str]

    def token(self, role: str, **wishes: Any) -> str:
        tokens = Tokens(keys.load(self.home / "signing-key.pem"))
        return tokens.mint(grant(role=role, **wishes), now=utc_now())[0]

    def ask(self, method: str, path: str, token: str, **more: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.request(method, self.url + path, headers=headers, trust_env=False, timeout=300, **more)  # type: ignore[arg-type]
        self.said += [answer.text, str(answer.headers)]
        return answer


@pytest.fixture(scope="module")
def installation(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    home = tmp_path_factory.mktemp("home")
    (home / "grid.yaml").write_text(GRID)
    with postgres.fresh() as plain:
        url = make_url(plain).set(password=DATABASE_PASSWORD).render_as_string(hide_password=False)
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "PILOTAGE_HOME": str(home),
            "PILOTAGE_DATABASE_URL": url,
            # Nobody listens there: what is said of a Redis that is away shall not say how one gets in.
            "PILOTAGE_REDIS_URL": f"redis://worker:{REDIS_PASSWORD}@127.0.0.1:9/0",
            "PILOTAGE_LOG_LEVEL": "debug",
        }
        made = Installation(home, environment, "", [])
        engine.upgrade_schema(url)
        log = home / "service.log"
        with log.open("wb") as stream:
            words = ["serve", "--port", "0", "--resources", str(home / "grid.yaml"), "--json"]
            process = subprocess.Popen([PILOTAGE, *words], env=environment, stdout=stream, stderr=stream)
        with process:
            try:
                made.url = _ready(log, process)
                yield made
            finally:
                process.terminate()


def _ready(log: Path, process: "subprocess.Popen[bytes]") -> str:
    """The service's address, once it answers."""

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        said = log.read_text().partition("pilotage serves ")[2].split()
        with contextlib.suppress(httpx.TransportError):
            return bool(said) and httpx.get(f"{said[0]}/readyz", trust_env=False, timeout=300).is_success
        return False

    wait.until(is_ready)
    return log.read_text().partition("pilotage serves ")[2].split()[0]


def test_nothing_that_is_said_shows_a_secret(installation: Installation):
    secrets = [DATABASE_PASSWORD, REDIS_PASSWORD, LINK]
    for role, wishes in TOKENS.items():
        token = installation.token(role, **wishes)
        secrets.append(token)
        for path in ("/api/v1/jobs", "/api/v1/nowhere", "/metrics", "/api/v1/config"):
            installation.ask("GET", path, token)
        installation.ask("GET", "/api/v1/jobs", token + "x")
        installation.ask("POST", "/api/v1/tokens/revoke", token, json={"token": "nonsense"})
    secrets += _of_a_pilot(installation)
    _strangers(installation)
    said = [*installation.said, (installation.home / "service.log").read_text()]
    assert '"GET' in said[-1], "the log says nothing of requests: the test would see nothing"
    shown = {secret for secret in secrets for text in said if secret in text}
    assert not shown


def _of_a_pilot(installation: Installation) -> list[str]:
    """A pilot's secret, exchanged, shown a second time, and wrong ones."""
    director = installation.token("director", vo="cms", site="LCG.A.org")
    body = {"stamp": "s1", "queue": QUEUE, "secret": True}
    headers = {"Authorization": f"Bearer {director}"}
    registered = httpx.post(
        f"{installation.url}/api/v1/pilots", json=body, headers=headers, trust_env=False, timeout=300
    )
    secret = registered.json()["secret"]
    exchange = f"{installation.url}/api/v1/pilots/s1/token"
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
            installation.said.append(answer.text)
    renewed = httpx.post(
        f"{installation.url}/api/v1/tokens/renew",
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
        timeout=300,
    ).json()["token"]
    return [director, secret, token, renewed]


def _strangers(installation: Installation) -> None:
    """What browsers bring in the query of a page: links and codes that are good once."""
    for path in (f"/login/link?secret={LINK}", f"/login/callback?code={LINK}&state={LINK}", f"/?a={LINK}"):
        answer = httpx.get(installation.url + path, trust_env=False, timeout=300)
        installation.said.append(answer.text)


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
