"""Two `pilotage serve` behind HAProxy or nginx: either may be stopped or killed, and no request fails."""

import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from examples.servers.starting import free_port, wait_until
from tests.acceptance.campaign import site
from tests.support.installation import Installation
from tests.support.processes import Supervised
from tests.support.servers import balancers
from tests.support.servers.balancers import Balancer
from tests.support.service import NO_AUTHORITIES

QUEUE = {"Site": site.PLAIN, "GridCE": "ce", "Queue": "q", "CPUTime": 100_000}


class Makes(Protocol):
    def __call__(self, directory: Path, services: list[str], /) -> AbstractContextManager[Balancer]: ...


@dataclass
class Pair:
    """Two services on one database."""

    installation: Installation
    services: list[Supervised]
    addresses: list[str]


def _is_ready(url: str, verify: ssl.SSLContext = NO_AUTHORITIES) -> bool:
    try:
        return httpx.get(f"{url}/readyz", verify=verify, trust_env=False, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _has_answered(url: str, token: str) -> bool:
    """Whether a service has answered a list of jobs since it was started."""
    headers = {"Authorization": f"Bearer {token}"}
    metrics = httpx.get(
        f"{url}/metrics", headers=headers, trust_env=False, verify=NO_AUTHORITIES, timeout=300
    ).text
    return 'pilotage_http_requests_total{method="GET",route="/jobs"' in metrics


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("pair")
    (home / "resources.yaml").write_text(site.LASTING)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    services = []
    with ExitStack() as stack:
        installation = Installation(home, {"PILOTAGE_HOME": str(home)}, stack)
        installation.run("db", "upgrade")
        for number, address in enumerate(addresses):
            told = ("--port", address.partition(":")[2], "--resources", str(home / "resources.yaml"))
            services.append(installation.start(f"serve{number}", "serve", *told))
            wait_until(lambda at=address: _is_ready(f"http://{at}"))  # type: ignore[misc]
        yield Pair(installation, services, addresses)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(balancers.haproxy, marks=pytest.mark.debian("haproxy")),
        pytest.param(balancers.nginx, marks=pytest.mark.debian("nginx")),
    ],
    ids=["haproxy", "nginx"],
)
def test_jobs_live_and_no_request_fails_while_one_service_after_the_other_is_stopped(
    make: Makes, pair: Pair, tmp_path: Path
) -> None:
    user = pair.installation.token("user", "--vo", site.VO, "--user", "ada")
    pilot = pair.installation.token("pilot", "--vo", site.VO, "--queue", f"{site.PLAIN}/ce/q")
    operator = pair.installation.token("operator")
    with make(tmp_path, pair.addresses) as balancer:
        verify = ssl.create_default_context(cafile=str(balancer.authority))
        wait_until(lambda: _is_ready(balancer.url, verify))

        def client(token: str) -> httpx.Client:
            headers = {"Authorization": f"Bearer {token}", "Request-Timeout": "60"}
            return httpx.Client(
                base_url=f"{balancer.url}/api/v1",
                headers=headers,
                verify=verify,
                trust_env=False,
                timeout=300,
            )

        seen: list[int] = []

        def poll() -> None:
            with client(user) as once:  # a connection each: any of the two may get it
                seen.append(once.get("/jobs?limit=1").status_code)

        with closing(client(user)) as of_user, closing(client(pilot)) as of_pilot, _again_and_again(poll):
            for service, address in zip(pair.services, pair.addresses, strict=True):
                _live(of_user, of_pilot)
                service.stop()
                _live(of_user, of_pilot)
                _wait_for_more(seen)
                service.start()
                wait_until(lambda at=address: _is_ready(f"http://{at}"))  # type: ignore[misc]
                # The balancer checks it every few seconds: before, the other one must not stop.
                wait_until(lambda at=address: _has_answered(f"http://{at}", operator))  # type: ignore[misc]
    assert set(seen) == {200}


@contextmanager
def _again_and_again(work: Callable[[], None]) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.05):
            work()

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        try:
            yield
        finally:
            stop.set()
        running.result()


def _wait_for_more(seen: list[int]) -> None:
    enough = len(seen) + 10
    wait_until(lambda: len(seen) > enough)


def _live(user: httpx.Client, pilot: httpx.Client) -> None:
    """A job from its submission to its end."""
    [job_id] = (
        user.post("/jobs", json={"jdl": '[ Executable = "/bin/true"; ]'}).raise_for_status().json()["job_ids"]
    )
    wait_until(lambda: user.get(f"/jobs/{job_id}").raise_for_status().json()["status"] == "Waiting")
    # The other process may have prepared it: this one knows of it within two seconds.
    [match] = wait_until(
        lambda: pilot.post("/matcher/requestJob", json=QUEUE).raise_for_status().json()["matches"]
    )
    assert match["job_id"] == job_id
    for call, body in (("start", {}), ("heartbeat", {}), ("finish", {"status": "Done", "exit_code": 0})):
        pilot.post(f"/leases/{match['lease']}/{call}", json=body).raise_for_status()
