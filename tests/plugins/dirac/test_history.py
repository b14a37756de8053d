"""Records WMSHistory, printed and sent to a stand-in of OpenSearch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cs_config import validate
from cs_config.options import bounds
from pilotage.cli.errors import CommandRefused
from pilotage.plugins.dirac import command as dirac_door
from pilotage.plugins.dirac import monitoring
from taskqueue.db import database
from tests.support.factories.submitted_jobs import submit
from tests.support.servers.http_servers import answering

NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)
RESOURCES = "Resources: {Sites: {LCG.A.org: {MoUTierLevel: 1}}}\n"


@contextmanager
def opensearch(answer: dict[str, object]) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Its URL, and what was sent: the method, the path, the body."""
    calls: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            calls.append((self.command, self.path, body))
            made = any(call[:2] == ("PUT", self.path) for call in calls[:-1])
            error = {"error": {"type": "resource_already_exists_exception"}}
            text = json.dumps(error if made and self.command == "PUT" else answer).encode()
            self.send_response(400 if made and self.command == "PUT" else 200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT  # noqa: N815  (the base class's name)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with answering(server):
        yield f"http://127.0.0.1:{server.server_address[1]}", calls


def list_records(engine: Engine) -> list[dict[str, Any]]:
    with database.reading(engine) as conn:
        return list(monitoring.list_history(conn, validate.parse(RESOURCES), NOW))


def test_jobs_are_counted_by_the_keys_of_dirac(engine: Engine) -> None:
    grouped = "{Executable: x, JobGroup: '7', Site: LCG.A.org}"
    submit(engine, validate.parse(RESOURCES), NOW, grouped, grouped, "{Executable: x}")
    records = {record["JobGroup"]: record for record in list_records(engine)}
    assert records["7"].keys() == {*monitoring.HISTORY_KEYS, "Jobs", "Reschedules", "timestamp"}
    assert (records["7"]["Jobs"], records["7"]["Reschedules"]) == (2, 0)
    assert (records["7"]["Tier"], records["7"]["Type"]) == ("1", "LCG")
    assert sum(record["Jobs"] for record in records.values()) == 3
    assert records["7"]["timestamp"] == NOW.timestamp() * 1000
    assert {record["ApplicationStatus"] for record in records.values()} == {"unset"}


def test_jobs_beyond_the_bound_are_added_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "DIRAC_RECORDS", 1)
    groups = [f"{{Executable: x, JobGroup: g{number}}}" for number in (1, 1, 2, 3)]
    submit(engine, validate.parse(RESOURCES), NOW, *groups)
    records = {(each["JobGroup"], each["User"] == "(more)"): each["Jobs"] for each in list_records(engine)}
    assert records == {("g1", False): 2, ("(more)", True): 2}


def test_records_are_sent_in_bulk_to_an_index_of_the_day(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login dirac password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setattr(dirac_door, "_MOST", 2)
    records = [{"Site": "LCG.A.org", "Jobs": number} for number in range(3)]
    with opensearch({"errors": False}) as (url, calls):
        for _ in range(2):
            dirac_door.send(url, "wmshistory_index-2026-03-28", records)
    assert [call[:2] for call in calls[:3]] == [
        ("PUT", "/wmshistory_index-2026-03-28"),
        ("POST", "/_bulk"),
        ("POST", "/_bulk"),
    ]
    assert json.loads(calls[0][2])["mappings"]["properties"]["Site"] == {"type": "keyword"}
    lines = [json.loads(line) for call in calls[1:3] for line in call[2].splitlines()]
    assert lines[1::2] == records
    assert lines[0] == {"index": {"_index": "wmshistory_index-2026-03-28"}}
    failures = [{"index": {"error": {"type": "no room"}}}, {"index": {"status": 201}}]
    answer = {"errors": True, "items": failures}
    with opensearch(answer) as (url, _), pytest.raises(CommandRefused, match=r"1 failed.*no room"):
        dirac_door.send(url, "x", records)


def test_a_url_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(CommandRefused, match=r"~/\.netrc") as refused:
        dirac_door.send("https://ada:secret@opensearch:9200", "x", [])
    assert "secret" not in str(refused.value)


def test_tier_0_is_one(engine: Engine) -> None:
    config = validate.parse(RESOURCES.replace("MoUTierLevel: 1", "MoUTierLevel: 0"))
    submit(engine, config, NOW, "{Executable: x, Site: LCG.A.org}")
    with database.reading(engine) as conn:
        [record] = monitoring.list_history(conn, config, NOW)
    assert record["Tier"] == "0"
