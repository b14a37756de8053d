"""Each number on a page that is a link leads to a list of that many: a walk through all pages, by role."""

import re
from collections import Counter
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

import pytest
from fastapi.routing import APIRoute

from pilotage.service.pages import navigation
from tests.support.page_walk import ROLES, Walk
from tests.support.service import Service

#: The lists to which their numbers lead.
COUNTED: Mapping[str, set[str]] = {
    "operator": {"/jobs", "/pilots", "/pools", "/failures"},
    "vo_admin": {"/jobs", "/pilots", "/pools", "/failures"},
    "user": {"/jobs", "/pools"},
    "site_admin": {"/pilots"},
    "director": {"/pilots", "/pools"},
}
#: A number alone, or with what it counts: `12`, `more than 1 000`, `7+`, `3 Waiting`, `Waiting 3`.
_NUMBER = re.compile(
    r"(?:more than )?(\d[\d\s,]*)\+?(?: ?[A-Z][a-z]+| stuck: .*)?|(?:[A-Z][a-z]+) (\d[\d\s,]*)"
)
#: Links to one thing by its name, which may be digits alone (of a job, a pilot): no number of a list.
_NAMED = re.compile(r"/(?:jobs|pilots|pools)/[^/]+|/configuration/history")
#: A problem of the overview that counts jobs: `3 jobs wait …`, `at A 60 of 160 jobs of cms failed …`.
_PROBLEM = re.compile(r"(?:at \S+ )?(\d[\d,]*) (?:of \S+ )?jobs?\b.*")


def read_number(text: str) -> int | None:
    """The number that a link shows; None: it shows none."""
    found = _NUMBER.fullmatch(text) or _PROBLEM.fullmatch(text)
    digits = next((each for each in found.groups() if each), None) if found else None
    return None if digits is None else int(re.sub(r"\D", "", digits))


def test_the_walk_comes_to_each_page(world: Service) -> None:
    walked = {urlsplit(address).path for who in ROLES.values() for address, _ in Walk(world, who).iterate()}
    missed = {
        route.path
        for router in navigation.list_pages()
        for route in router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods
        if not Walk.leaves_out(route.path) and not any(map(route.path_regex.fullmatch, walked))
    }
    assert missed == set()


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
