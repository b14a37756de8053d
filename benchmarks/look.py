"""How long people wait for pages and lists, beside a million jobs that wait and half a million that are over.

Each page, and each list of the interface, as each role that may see it; the role that waits longest is told.
The first look finds nothing remembered; of the others the middle one counts.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import httpx

from benchmarks import large, lhcb, servers, services
from benchmarks.results import Result
from benchmarks.services import Service
from requirements.errors import PilotageError
from taskqueue.db import database

#: Milliseconds.
_ALLOWED = 300
_LOOKS = 4
#: It is not for this role, or as if it were not there.
_NOT_THEIRS = (403, 404)
_PLACE = lhcb.queues()[0]
_SITE = str(_PLACE["Site"])
_QUEUE = f"{_SITE}/{_PLACE['GridCE']}/{_PLACE['Queue']}"
_ROLES: Mapping[str, Mapping[str, str]] = {
    "operator": {"user": "root"},
    "vo_admin": {"vo": lhcb.VO, "user": "eve"},
    "user": {"vo": lhcb.VO, "user": "lbprods", "group": "lhcb_prmgr"},
    "site_admin": {"site": _SITE, "user": "sam"},
    "director": {"vo": lhcb.VO, "user": "dora"},
    "gateway": {"vo": lhcb.VO, "site": _SITE, "user": "gate"},
}
#: With the largest pool, a job that waits and one that is over.
_ADDRESSES = (
    "/",
    *("/jobs", "/jobs?status=Waiting", "/jobs?status=Done", "/jobs?site=LCG.Site05.org", "/jobs?sort=job"),
    *("/jobs?job_name=nobody", "/jobs?owner=lbprods&job_group=none", "/jobs?pool={pool}"),
    *("/jobs/change?do=kill&status=Waiting", "/jobs/new", "/jobs/{job}", "/jobs/{job}/why", "/jobs/{over}"),
    *("/sites", f"/sites/{_SITE}", f"/sites/{_SITE}/offers", f"/sites/{_QUEUE}"),
    *("/pools", "/pools/{pool}", "/task-queues", "/task-queues?pool={pool}"),
    *("/pilots", "/managers", "/configuration", "/accounting"),
    *("/api/v1/jobs", "/api/v1/jobs?status=Running", "/api/v1/jobs?job_name=nobody"),
    *("/api/v1/jobs/summary?by=status", "/api/v1/jobs/summary?by=status,site"),
    *("/api/v1/jobs/{job}", "/api/v1/jobs/{job}/log", "/api/v1/jobs/{job}/explain"),
    *("/api/v1/pools", "/api/v1/pools/{pool}", "/api/v1/sites", f"/api/v1/sites/{_SITE}"),
    *("/api/v1/pilots", "/api/v1/pilots/summary?by=queue", "/api/v1/accounting?by=vo", "/api/v1/config"),
    *(f"/api/v1/resources/queues/{_QUEUE}/explain", "/metrics"),
)


class NotShown(PilotageError):
    """A page is broken: there is nothing to measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How long one role waited for an address, in milliseconds."""

    role: str
    first: float
    others: float  #: the middle one of them


def run(*, quick: bool) -> Iterator[Result]:
    """A line for each address."""
    waiting = 20_000 if quick else 1_000_000
    with servers.postgres() as server, servers.fresh_database(server, "look") as url:
        engine = database.connect(url)
        large.fill(engine, waiting=waiting)
        with services.serving(url, lhcb.tree()) as service:
            large.lead(engine, service, finished=waiting // 2, running=waiting // 20)
        engine.dispose()
        with services.serving(url, lhcb.tree()) as service:
            yield from _looks(service)


def _looks(service: Service) -> Iterator[Result]:
    clients = {role: _client(service, role) for role in _ROLES}
    known = _known(clients["operator"])
    for address in _ADDRESSES:
        looks = [_look(role, client, address.format(**known)) for role, client in clients.items()]
        yield _line(address, max((look for look in looks if look), key=lambda look: look.others))
    for client in clients.values():
        client.close()


def _client(service: Service, role: str) -> httpx.Client:
    """Somebody who is signed in, for pages and for the interface."""
    token = service.token(role, **_ROLES[role])
    cookie = {f"pilotage-{service.url.rpartition(':')[2]}": token}
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=service.url, headers=headers, cookies=cookie, timeout=120)


def _known(client: httpx.Client) -> Mapping[str, object]:
    pools = client.get("/api/v1/pools").raise_for_status().json()["pools"]
    newest = {
        status: client.get(f"/api/v1/jobs?limit=1&owner=lbprods&status={status}").json()["jobs"][0]["job_id"]
        for status in ("Waiting", "Done")
    }
    largest = max(pools, key=lambda pool: sum(pool["jobs"].values()))
    return {"pool": largest["pool_id"], "job": newest["Waiting"], "over": newest["Done"]}


def _look(role: str, client: httpx.Client, address: str) -> Look | None:
    """None: the role may not."""
    times = []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        answer = client.get(address)
        times.append(1000 * (time.perf_counter() - began))
        if answer.status_code in _NOT_THEIRS:
            return None
        if not answer.is_success:
            raise NotShown(f"{address} as {role}: {answer.status_code}")
    return Look(role=role, first=times[0], others=median(times[1:]))


def _line(address: str, slowest: Look) -> Result:
    return Result(
        values={
            "what": address.replace(_QUEUE, "{queue}").replace(_SITE, "{site}"),
            "as": slowest.role,
            "first ms": round(slowest.first),
            "ms": round(slowest.others),
            "allowed": _ALLOWED,
            "ratio": round(slowest.others / _ALLOWED, 2),
        }
    )
