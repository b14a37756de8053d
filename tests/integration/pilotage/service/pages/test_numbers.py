"""Each number on a page that is a link leads to a list of that many: a walk through all pages, by role."""

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urldefrag, urljoin, urlsplit

import httpx
import pytest

from agents import accounting
from pilotage.service.services import utc_now
from requirements.states import PilotStatus
from taskqueue.db import database
from taskqueue.pilots import pilots
from tests.support.factories import stored_rows
from tests.support.service import Service, running_on_sqlite

A, B = "LCG.A.org", "LCG.B.org"
#: Roles whose pages differ.
ROLES: Mapping[str, Mapping[str, str]] = {
    "operator": {"role": "operator", "user": "root"},
    "vo_admin": {"role": "vo_admin", "vo": "cms", "user": "eve"},
    "user": {"role": "user", "vo": "cms", "user": "ada"},
    "site_admin": {"role": "site_admin", "site": A, "user": "maria"},
    "director": {"role": "director", "vo": "cms", "site": A, "user": "north"},
}
#: The lists to which their numbers lead.
COUNTED: Mapping[str, set[str]] = {
    "operator": {"/jobs", "/pilots", "/pools", "/failures"},
    "vo_admin": {"/jobs", "/pilots", "/pools", "/failures"},
    "user": {"/jobs", "/pools"},
    "site_admin": {"/pilots"},
    "director": {"/pilots", "/pools"},
}
#: Parameters of the same list in another order, or of another part of it.
_SAME_LIST = frozenset({"sort", "after", "limit", "columns", "hours", "from", "to", "bucket"})
#: Pages that change something, or whose answer is no page.
_NOT_WALKED = re.compile(
    r"/(assets/|docs|openapi|logout|login|jobs/(download|change|resubmit|new|events)|accounting\.csv|.*output)"
)
#: A number alone, or with what it counts: `12`, `more than 1 000`, `7+`, `3 Waiting`, `Waiting 3`.
_NUMBER = re.compile(
    r"(?:more than )?(\d[\d\s,]*)\+?(?: ?[A-Z][a-z]+| stuck: .*)?|(?:[A-Z][a-z]+) (\d[\d\s,]*)"
)
#: A number that is the name of what it leads to: of a job, and of a version of the configuration.
_NAMED = re.compile(r"/jobs/\d+|/configuration/history")
#: A problem of the overview that counts jobs: `3 jobs wait …`, `at A 60 of 160 jobs of cms failed …`.
_PROBLEM = re.compile(r"(?:at \S+ )?(\d[\d,]*) (?:of \S+ )?jobs?\b.*")


@dataclass
class Link:
    """A link of a page, with its text."""

    address: str
    text: str


@dataclass
class Row:
    """The cells of a row in the body of a table."""

    cells: list[str] = field(default_factory=list)


class Reader(HTMLParser):
    """The links of a page, and the rows of its tables by the table's order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.tables: list[list[Row]] = []
        self._link: Link | None = None
        self._in_body = self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a" and (address := dict(attrs).get("href")):
            self._link = Link(address, "")
        elif tag == "table":
            self.tables.append([])
        elif tag == "tbody":
            self._in_body = True
        elif tag == "tr" and self._in_body:
            self.tables[-1].append(Row())
        elif tag in ("td", "th") and self._in_body:
            self.tables[-1][-1].cells.append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._link is not None:
            self._link.text = " ".join(self._link.text.split())
            self.links.append(self._link)
            self._link = None
        elif tag == "tbody":
            self._in_body = False
        elif tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._link is not None:
            self._link.text += data
        if self._in_cell:
            self.tables[-1][-1].cells[-1] += data


def read_number(text: str) -> int | None:
    """The number that a link shows; None: it shows none."""
    found = _NUMBER.fullmatch(text) or _PROBLEM.fullmatch(text)
    digits = next((each for each in found.groups() if each), None) if found else None
    return None if digits is None else int(re.sub(r"\D", "", digits))


class Walk:
    """The pages that a role reaches from the overview."""

    def __init__(self, service: Service, wishes: Mapping[str, str]) -> None:
        cookie = f"pilotage-{httpx.URL(service.url).port}={service.token(**wishes)}"
        self._client = service.client()
        self._client.headers["Cookie"] = cookie
        self._read: dict[str, Reader] = {}
        self.wrong: dict[str, None] = {}

    def get(self, address: str) -> Reader:
        if address not in self._read:
            answer = self._client.get(address, follow_redirects=True)
            if answer.status_code != 200:
                self.wrong[f"{address} is answered with {answer.status_code}"] = None
            self._read[address] = Reader(answer.text)
        return self._read[address]

    def iterate(self) -> Iterator[tuple[str, Reader]]:
        """Pages with their addresses: of the same page with the same kinds of conditions, the first."""
        seen, waiting = {("/", frozenset[str]())}, deque(["/"])
        while waiting:
            address = waiting.popleft()
            page = self.get(address)
            yield address, page
            for link in page.links:
                there = urldefrag(urljoin(address, link.address)).url
                parts = urlsplit(there)
                if parts.netloc or _NOT_WALKED.match(parts.path):
                    continue
                kinds = frozenset(parse_qs(parts.query)) - _SAME_LIST
                kind = re.sub(r"^/jobs/\d+", "/jobs/1", parts.path)  # the pages of jobs are alike
                if (key := (kind, kinds)) not in seen:
                    seen.add(key)
                    waiting.append(there)

    def count_listed(self, address: str) -> int:
        """How many the list at this address has, on all of its pages."""
        path, number = urlsplit(address).path, 0
        while True:
            page = self.get(address)
            rows = page.tables[-1] if page.tables else []
            if path == "/failures":  # groups of jobs
                number += sum(int(re.sub(r"\D", "", row.cells[0])) for row in rows)
            else:
                number += len(rows)
            following = [each for each in page.links if each.text == "Next page"]
            if not following:
                return number
            address = urljoin(address, following[0].address)


@pytest.fixture(scope="module")
def world(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Jobs of three people and two VOs in many statuses; pilots, one of them long ago; a site that fails."""
    with running_on_sqlite(sqlite_template, tmp_path_factory.mktemp("numbers")) as service:
        for user, vo in (("ada", "cms"), ("bob", "cms"), ("ida", "cms"), ("ida", "dune")):
            group = {"Executable": "x", "JobGroup": "scan", "Site": A}
            service.submit(*[group] * 4, user=user, vo=vo)
            service.submit(
                {"Executable": "x", "JobGroup": "big", "Requirements": {"Memory": 900000}}, user=user, vo=vo
            )
            service.submit({"Executable": "x", "Requirements": {"Memory": 100}}, user=user, vo=vo)
        service.submit(*[{"Executable": "x", "JobGroup": "fails", "Site": B}] * 70)  # more than a page
        killed = service.submit({"Executable": "x", "JobGroup": "scan"})
        service.user().post(f"/api/v1/jobs/{killed[0]}/kill").raise_for_status()
        held = service.submit({"Executable": "x", "JobGroup": "scan"})
        service.user().post(f"/api/v1/jobs/{held[0]}/hold").raise_for_status()
        for _ in range(12):
            _run(service, f"{B}/ce2/all", {"status": "Failed", "exit_code": 1})
        _run(service, f"{B}/ce2/all", {"status": "Done"})
        _run(service, f"{A}/ce1/long", {"status": "Done"})
        _run(service, f"{A}/ce1/long", {"status": "Failed", "exit_code": 65})
        _run(service, f"{A}/ce1/long", {"status": "Failed", "exit_code": 65})
        _run(service, f"{A}/ce1/long", {"status": "Failed", "exit_code": 137})
        _run(service, f"{A}/ce1/long", {"status": "Failed", "exit_code": 65}, vo="dune")
        _run(service, f"{A}/ce1/long", None)
        with database.writing(service.engine) as conn:
            old = utc_now() - timedelta(days=3)
            pilots.record_contact(conn, stamp="old", vo="cms", queue=None, now=old)
            stored_rows.force_pilot(conn, "old", status=PilotStatus.DONE)
        assert accounting.cycle(service.engine, now=utc_now(), holder="test") is not None
        yield service


def _run(service: Service, queue: str, end: Mapping[str, Any] | None, *, vo: str = "cms") -> None:
    """A pilot that gets a job, which ends so; None: it runs."""
    site, ce, name = queue.split("/")
    pilot = service.pilot(queue, vo)
    asked = {"Site": site, "GridCE": ce, "Queue": name, "CPUTime": 100_000}
    [match] = pilot.post("/api/v1/matcher/requestJob", json=asked).raise_for_status().json()["matches"]
    lease = f"/api/v1/leases/{match['lease']}"
    pilot.post(f"{lease}/start", json={}).raise_for_status()
    if end is not None:
        pilot.post(f"{lease}/finish", json=end).raise_for_status()


@pytest.mark.parametrize("who", ROLES)
def test_each_number_that_is_a_link_leads_to_a_list_of_that_many(who: str, world: Service) -> None:
    walk, checked = Walk(world, ROLES[who]), Counter[str]()
    for address, page in walk.iterate():
        for link in page.links:
            there = urljoin(address, link.address)
            path, number = urlsplit(there).path, read_number(link.text)
            if number is None or _NAMED.fullmatch(path):
                continue
            checked[path] += 1
            if (listed := walk.count_listed(there)) != number:
                walk.wrong[f"{address}: {link.text!r} leads to {there} with {listed}"] = None
    assert not walk.wrong, "\n".join(walk.wrong)
    assert set(checked) == COUNTED[who]
