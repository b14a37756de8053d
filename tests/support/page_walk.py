"""A walk through the pages that a role reaches by links from the overview."""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import parse_qs, urldefrag, urljoin, urlsplit

import httpx

from tests.support.service import Service

#: Roles whose pages differ.
ROLES: Mapping[str, Mapping[str, str]] = {
    "operator": {"role": "operator", "user": "root"},
    "vo_admin": {"role": "vo_admin", "vo": "cms", "user": "eve"},
    "user": {"role": "user", "vo": "cms", "user": "ada"},
    "site_admin": {"role": "site_admin", "site": "LCG.A.org", "user": "maria"},
    "director": {"role": "director", "vo": "cms", "site": "LCG.A.org", "user": "north"},
}
#: Parameters of the same list in another order, or of another part of it.
_SAME_LIST = frozenset({"sort", "after", "limit", "columns", "hours", "from", "to", "bucket"})
#: Pages that change something, or whose answer is no page.
_NOT_WALKED = re.compile(
    r"/(assets/|docs|openapi|logout|login|explain|jobs/(download|change|resubmit|new|events)"
    r"|accounting\.csv|configuration/paths|.*(output|stderr))"
)


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
        self.text = text
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


class Walk:
    """The pages that a role reaches from the overview."""

    def __init__(self, service: Service, wishes: Mapping[str, str]) -> None:
        cookie = f"pilotage-{httpx.URL(service.url).port}={service.token(**wishes)}"
        self._client = service.client()
        self._client.headers["Cookie"] = cookie
        self._read: dict[str, Reader] = {}
        self.wrong: dict[str, None] = {}

    @staticmethod
    def leaves_out(path: str) -> bool:
        return _NOT_WALKED.match(path) is not None

    def get(self, address: str) -> Reader:
        if address not in self._read:
            answer = self._client.get(address, follow_redirects=True)
            if answer.status_code != 200:
                self.wrong[f"{address} is answered with {answer.status_code}"] = None
            self._read[address] = Reader(answer.text)
        return self._read[address]

    def iterate(self) -> Iterator[tuple[str, Reader]]:
        """Pages with their addresses: of the same page with the same kinds of conditions, the first."""
        seen, waiting = {("/", frozenset[str]())}, deque(["/", "/search?q=scan"])  # a form leads there
        while waiting:
            address = waiting.popleft()
            page = self.get(address)
            yield address, page
            for link in page.links:
                there = urldefrag(urljoin(address, link.address)).url
                parts = urlsplit(there)
                if parts.netloc or self.leaves_out(parts.path):
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
