"""The accounts over HTTP: what is summed, as what, and who is told."""

import csv
import io
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from pilotage.service.queries import accounting
from pilotage.service.services import utc_now
from tests.support.commands import Run, run, send_to
from tests.support.factories import accounted_jobs
from tests.support.service import Service, running

__all__ = ["run"]


@pytest.fixture(scope="module")
def service(
    any_engine: Engine, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Service]:
    from tests.support.service import CONFIG

    with running(any_engine, tmp_path_factory.mktemp("service"), CONFIG) as service:
        accounted_jobs.a_day(any_engine, utc_now())
        yield service


def _rows(client: httpx.Client, query: str = "") -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/accounting?from=2d{query}")
    assert answer.is_success, answer.text
    rows: list[dict[str, Any]] = answer.json()["rows"]
    return rows


def test_sums_are_told_by_vo_site_and_status(service: Service):
    [cms, dune] = _rows(service.operator())
    assert (cms["vo"], cms["jobs"], cms["attempts"], cms["wall_seconds"]) == ("cms", 4, 3, 10800)
    assert (cms["cpu_seconds"], cms["cpu_efficiency"], cms["normalised_cpu_seconds"]) == (3600, 0.5, 36000)
    assert (dune["vo"], dune["cpu_efficiency"], dune["normalised_cpu_seconds"]) == ("dune", 1, 0)
    assert cms["waited"] == {"a pilot": 3 * 3600 + 3 * 3600}
    by_place = _rows(service.operator(), "&by=site,ce,queue,status&vo=CMS")
    assert [(row["site"], row["ce"], row["queue"], row["status"], row["jobs"]) for row in by_place] == [
        ("", "", "", "Killed", 1),
        ("LCG.A.org", "ce1", "long", "Done", 2),
        ("LCG.B.org", "ce1", "long", "Failed", 1),
    ]


@pytest.mark.parametrize("query", ["", "&bucket=day"])
def test_sums_of_nothing_are_no_rows(service: Service, query: str):
    assert _rows(service.operator(), f"&by=&site=nowhere{query}") == []
    [everything] = _rows(service.operator(), "&by=")
    assert everything["jobs"] == 5


@pytest.mark.parametrize(("bucket", "length"), [("hour", 13), ("day", 10), ("month", 7), ("year", 4)])
def test_time_is_cut_into_buckets_that_sum_to_the_whole(service: Service, bucket: str, length: int):
    rows = _rows(service.operator(), f"&by=vo&bucket={bucket}")
    assert sum(row["jobs"] for row in rows) == 5
    assert sum(row["wall_seconds"] for row in rows) == pytest.approx(18000)
    beginning = "0001-01-01T00:00:00Z"
    assert {row["at"][length:] for row in rows} == {beginning[length:]}
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    if bucket == "hour":
        assert [row["wall_seconds"] for row in rows if row["vo"] == "dune"] == [3600, 3600, 0]


def test_only_the_time_that_is_asked_for_counts(service: Service):
    assert _rows(service.operator(), "&to=1d") == []
    since = (utc_now() - timedelta(hours=2)).isoformat().replace("+", "%2B")
    assert service.operator().get(f"/api/v1/accounting?from={since}").json()["rows"] == []


def test_each_is_told_what_concerns_it(service: Service):
    assert [(row["owner"], row["jobs"]) for row in _rows(service.user(), "&by=owner")] == [("ada", 3)]
    assert _rows(service.user(), "&by=owner&owner=bob") == []
    assert _rows(service.user(), "&vo=dune") == []
    admin = service.as_role("vo_admin", vo="cms", user="eve")
    assert [(row["owner"], row["jobs"]) for row in _rows(admin, "&by=owner")] == [("ada", 3), ("bob", 1)]
    assert _rows(admin, "&vo=dune") == []
    site = service.as_role("site_admin", site="LCG.A.org")
    assert [(row["vo"], row["site"], row["jobs"]) for row in _rows(site, "&by=vo,site")] == [
        ("cms", "LCG.A.org", 2),
        ("dune", "LCG.A.org", 1),
    ]
    assert _rows(site, "&site=LCG.B.org") == []
    of_cms = service.as_role("site_admin", site="LCG.A.org", vo="cms")
    assert {row["vo"] for row in _rows(of_cms, "&by=vo")} == {"cms", "dune"}
    assert {row["vo"] for row in _rows(of_cms, "&by=vo,owner")} == {"cms"}


@pytest.mark.parametrize("query", ["by=owner", "by=vo,owner_group", "owner=ada"])
def test_a_site_is_not_told_who_used_what(service: Service, query: str):
    answer = service.as_role("site_admin", site="LCG.A.org").get(f"/api/v1/accounting?{query}")
    assert answer.status_code == 403
    assert "not by owner" in answer.json()["error"]["message"]


@pytest.mark.parametrize("how", ["suffix", "header"])
def test_the_sums_are_a_table_for_spreadsheets(service: Service, how: str):
    path, headers = (
        ("/api/v1/accounting.csv", {}) if how == "suffix" else ("/api/v1/accounting", {"Accept": "text/csv"})
    )
    answer = service.operator().get(f"{path}?from=2d&by=vo,owner&bucket=day", headers=headers)
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert sum(int(row["jobs"]) for row in rows) == 5
    assert {row["owner"] for row in rows} == {"ada", "bob", "dora"}
    assert sum(float(row["waited_seconds: a pilot"]) for row in rows) == 7 * 3600


def test_the_command_shows_the_same(
    service: Service, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    send_to(service, tmp_path, monkeypatch)
    words = ("accounting", "--from", "2d")
    status, shown, _ = run(*words, "--by", "vo,site", "--vo", "cms")
    assert status == 0
    assert [line.split()[:6] for line in shown.splitlines() if "LCG.A.org" in line] == [
        ["cms", "LCG.A.org", "2", "2.0", "2.0", "1.0"]
    ]
    assert "50.0 %" in shown
    assert "a pilot 2.0" in shown
    assert json.loads(run(*words, "--json", "--bucket", "day")[1])["bucket"] == "day"
    assert run(*words, "--csv", "--by", "owner")[1].startswith("owner,jobs,attempts,wall_seconds")
    assert run(*words, "--csv", "--json")[0] == 2
    status, _, said = run(*words, "--by", "ownr")
    assert (status, said.count("\n"), said.endswith("did you mean owner?\n")) == (2, 1, True)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("by=ownr", "did you mean"),
        ("from=yesterday", "is not a time"),
        ("from=1d&to=2d", "is not before the end"),
        ("to=0001-01-01T00:00:00%2B14:00", "is not before the end"),
        ("bucket=week", "allowed is 'hour', 'day', 'month' or 'year'"),
        ("group=vo", "group"),
    ],
)
def test_what_cannot_be_asked_is_said(service: Service, query: str, says: str):
    answer = service.operator().get(f"/api/v1/accounting?{query}")
    assert answer.status_code == 400
    assert says in answer.text


def test_too_many_rows_are_refused_with_advice(service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accounting, "MOST", 2)
    answer = service.operator().get("/api/v1/accounting?from=2d&by=owner")
    assert answer.status_code == 400
    assert "longer buckets" in answer.text
