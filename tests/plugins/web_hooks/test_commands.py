"""`pilotage hook …` against a real service and its agent, each command as it is typed."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.plugins.web_hooks import agent
from pilotage.plugins.web_hooks.agent import WebHooksState
from pilotage.plugins.web_hooks.messages import SendResult
from tests.support.commands import Run, run, send_to
from tests.support.service import CONFIG, Service

__all__ = ["run"]

Print = Callable[..., str]
URL = "https://portal.example.org/jobs"


@pytest.fixture
def printed(service: Service, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Print:
    def run_hook(*words: str, vo: str = "cms", role: str = "vo_admin", status: int = 0) -> str:
        send_to(service, tmp_path / "nobody", monkeypatch, role, vo=vo, user="ada")
        ended, out, err = run("hook", *words)
        assert ended == status, err
        return out + err

    return run_hook


def send(service: Service) -> list[dict[str, object]]:
    """One cycle of the agent; the messages that it sends."""
    sent = []

    def post(_url: str, body: bytes, _headers: object) -> SendResult:
        sent.append(json.loads(body))
        return SendResult(answer="204", is_delivered=True)

    parts = service.parts
    about = {"now": parts.clock(), "holder": "test", "memory": WebHooksState(), "send": post}
    agent.cycle(parts.engine, parts.live.current, **about)
    return sent


def test_a_hook_is_made_tested_shown_and_removed(service: Service, printed: Print):
    said = printed("add", URL, "--name", "portal", "--event", "job.ended", "--group", "scan")
    assert "whsec_" in said
    [hook] = json.loads(printed("list", "--json"))["web_hooks"]
    assert (hook["name"], hook["events"], hook["job_group"], hook["waiting"]) == (
        "portal",
        ["job.ended"],
        "scan",
        1,
    )
    number = str(hook["hook_id"])
    printed("test", number)
    assert [each["type"] for each in send(service)] == ["test", "test"]
    client = service.user()
    jobs = [{"Executable": "x", "JobGroup": group} for group in ("scan", "other")]
    ids = client.post("/api/v1/jobs", json={"jobs": jobs}).json()["job_ids"]
    client.post("/api/v1/jobs/kill", json={"ids": ids}).raise_for_status()
    [message] = send(service)
    assert [job["job_id"] for job in message["data"]["jobs"]] == ids[:1]
    shown = printed("show", number)
    assert "delivered" in shown
    assert "T" not in re.search(r"test +delivered +(\S+)", shown)[1]
    assert "whsec_" not in shown
    assert len(json.loads(printed("show", number, "--json", "--limit", "2"))["deliveries"]) == 2
    for words in (("show", number), ("test", number), ("remove", number)):
        assert f"web hook {number} does not exist" in printed(*words, vo="dune", status=1)
    assert json.loads(printed("list", "--json", vo="dune"))["web_hooks"] == []
    printed("remove", number)
    assert "portal" not in printed("list")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((URL, "--name", "a", "--event", "job.endde"), "job.ended"),
        ((URL, "--name", "a", "--event", "test"), "test is sent to every hook"),
        (
            ("file:///etc/passwd", "--name", "a"),
            "'file:///etc/passwd' is neither an https nor a mailto address",
        ),
        (("mailto:a@b.org?bcc=c@d.org", "--name", "a"), "is neither an https nor a mailto address"),
        (("mailto:a@b.org,c@d.org", "--name", "a"), "is neither an https nor a mailto address"),
        (("https://a.example/\r\nb", "--name", "a"), "is neither an https nor a mailto address"),
        (("https://ada:x@a.example/", "--name", "a"), "may contain no password"),
        ((URL, "--name", "a", "--vo", "dune"), "the token is not for web hooks of dune"),
    ],
)
def test_what_cannot_be_is_refused_by_name(printed: Print, words: tuple[str, ...], message: str):
    assert message in printed("add", *words, status=1 if "the token" in message else 2)


def test_operators_set_how_many_hooks_a_vo_has_and_users_have_none(service: Service, printed: Print):
    service.configure(CONFIG.replace("  dune:\n", "  cms: {Limits: {WebHooks: 0}}\n  dune:\n", 1))
    assert "cms may have 0 web hooks (Operations/cms/Limits/WebHooks)" in printed(
        "add", URL, "--name", "a", status=2
    )
    assert "this is for VO admins and operators; your role is user" in printed(
        "add", URL, "--name", "a", role="user", status=1
    )
    service.configure(CONFIG)


def test_a_user_can_be_notified_by_mail(service: Service, printed: Print):
    printed("add", "mailto:ada@example.org", "--name", "mail to ada", "--owner", "ada")
    assert "mailto:ada@example.org" in printed("list")
