"""A real service on a real socket, in a thread of the test."""

import asyncio
import contextlib
import secrets
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Connection, Engine

from cs_config import notifications, validate
from cs_config.tree.configuration import Configuration
from cs_config.versions import store as versions
from cs_config.versions.store import LiveConfiguration
from matcher.claim.claim_thread import ClaimWorker
from matcher.claim.matcher import Matcher
from optimizers.chain import batch
from pilotage.cli.processes import serve
from pilotage.service.advice import Advisor
from pilotage.service.app import create_app
from pilotage.service.auth import keys
from pilotage.service.auth.callers import grant
from pilotage.service.auth.keys import KeyRing
from pilotage.service.auth.oidc.issuers import Issuers
from pilotage.service.auth.tokens import Tokens
from pilotage.service.queries import archives
from pilotage.service.services import ServiceLimits, Services, utc_now
from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.blob_stores.store import BlobStore, StagedBlob
from taskqueue.db import database
from taskqueue.db.notify import NotificationHub
from taskqueue.leases.reports import OutputReport
from taskqueue.pilots import pilots
from tests.support import databases
from tests.support.factories import stored_rows

KEY = keys.generate()
#: Of clients that use no TLS: loading the certificates of all authorities takes 40 ms for each client.
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms, dune]
      CEs:
        ce1:
          MaxRAM: 4000
          Queues:
            long: {CPUTime: 100000}
            short: {CPUTime: 3600, VOs: {dune: {MaxRAM: 8000}}}
    LCG.B.org:
      VO: [cms]
      CPUModel: Intel Xeon
      CEs:
        ce2:
          MaxRAM: 16000
          Queues:
            all: {CPUTime: 100000}
Operations:
  Defaults:
    JobDescription:
      Memory: {type: number, resource: MaxRAM, min: 1}
  dune:
    JobScheduling: {MaxRescheduling: 7}
Registry:
  VO: {cms: {}, dune: {}}
  Groups:
    cms_user: {VO: cms}
    dune_user: {VO: dune}
"""


@dataclass
class Service:
    """The parts of a service that answers at `url`."""

    parts: Services
    url: str
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        return self.parts.engine

    def token(self, role: str, **wishes: Any) -> str:
        return self.parts.tokens.mint(grant(role=role, **wishes), now=utc_now())[0]

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.Client(
            base_url=self.url, headers=headers, timeout=300, trust_env=False, verify=NO_AUTHORITIES
        )
        self.clients.append(client)
        return client

    def close_clients(self) -> None:
        for client in self.clients:
            client.close()

    def as_role(self, role: str, **wishes: Any) -> httpx.Client:
        return self.client(self.token(role, **wishes))

    def user(self, user: str = "ada", vo: str = "cms") -> httpx.Client:
        return self.as_role("user", vo=vo, user=user)

    def operator(self) -> httpx.Client:
        return self.as_role("operator", user="root")

    def pilot(self, queue: str | None = None, vo: str = "cms", *, processors: int = 99) -> httpx.Client:
        """A pilot that has stated its slot."""
        stamp = secrets.token_hex(8)
        with database.writing(self.engine) as conn:
            pilots.record_contact(conn, stamp=stamp, vo=vo, queue=None, now=utc_now())
            stored_rows.force_pilot(conn, stamp, processors=processors)
        return self.as_role("pilot", vo=vo, queue=queue, stamp=stamp)

    def submit(self, *jobs: Mapping[str, Any], user: str = "ada", vo: str = "cms") -> list[int]:
        """Submit jobs as this user; their ids."""
        answer = self.user(user, vo).post("/api/v1/jobs", json={"jobs": jobs})
        assert answer.status_code == 201, answer.text
        return list(answer.json()["job_ids"])

    def lose_first_output(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Lose the commit of the first output, which was confirmed before; the leases of all uploads."""
        store_output, uploads = archives.store_output, list[str]()

        def store_and_lose(parts: Services, report: OutputReport, staged: StagedBlob) -> None:
            store_output(parts, report, staged)
            uploads.append(report.lease)
            if len(uploads) == 1:
                with database.writing(self.engine) as conn:
                    stored_rows.lose_output(conn, report.lease)

        monkeypatch.setattr(archives, "store_output", store_and_lose)
        return uploads

    def configure(self, text: str) -> None:
        with database.writing(self.engine) as conn:
            versions.store_checked(
                conn, _parse(text), author="test", message="", expected=None, now=utc_now()
            )
        with database.reading(self.engine) as conn:
            self.parts.live.refresh(conn)


@lru_cache(maxsize=16)
def _parse(text: str) -> Configuration:
    """The configuration of a text; that of a real grid takes half a second."""
    return validate.parse(text, "test.yaml")


def _load_version(conn: Connection, version: int, earlier: Configuration) -> Configuration:
    """The same as `store.load_version`, but what `configure` stored is not parsed again."""
    row = conn.execute(versions.ONE_VERSION, {"wanted": version}).mappings().one()
    if row["author"] != "test":
        return versions.load_version(conn, version, earlier)
    empty: dict[str, Any] = {name: {} for name in ("derived", "_queues", "_aged")}
    return replace(_parse(row["text"]), version=version, author="test", **empty)


#: Seconds: however slow the machine is, a pilot gets its answer, and an answer its advice.
_PATIENCE = 300.0
_PATIENT = ServiceLimits(request_timeout=_PATIENCE, longest_request_timeout=_PATIENCE)


@contextlib.contextmanager
def running(
    engine: Engine,
    directory: Path,
    text: str,
    *,
    clock: Callable[[], datetime] = utc_now,
    issuers: Issuers | None = None,
    store: BlobStore | None = None,
    replica: Engine | None = None,
) -> Iterator[Service]:
    """A service with this configuration; jobs are optimized in the request that submits them.

    By `clock` its matcher goes; tokens do not. Its lottery is always the same.
    """
    live = LiveConfiguration(_load_version)
    matcher = Matcher(engine, lambda: live.current, clock, Random(1))
    claimer = ClaimWorker(engine, matcher)
    bell = NotificationHub(None)
    bell.subscribe(notifications.CHANGES, matcher.notify)
    database.set_notifier(engine, bell.publish)
    parts = Services(
        engine=engine,
        live=live,
        matcher=matcher,
        claimer=claimer,
        blobs=store or DirectoryStore(directory / "blobs"),
        tokens=Tokens(KeyRing(signing=KEY)),
        issuers=issuers or Issuers(),
        limits=_PATIENT,
        advisor=Advisor(seconds=_PATIENCE),
        notify_optimizers=lambda job_ids: optimize(engine, live, job_ids, parts.clock()),
        replica_engine=replica,
    )
    with contextlib.ExitStack() as at_end:  # a test that fails leaves nothing running beside the next one
        matcher.refresh()  # the index is loaded before the first request: the claim thread may come later
        claimer.start()
        at_end.callback(claimer.stop)
        service = Service(parts, at_end.enter_context(served(create_app(parts))))
        at_end.callback(service.close_clients)
        service.configure(text)
        yield service


@contextlib.contextmanager
def running_on_sqlite(template: Path, directory: Path, text: str = CONFIG) -> Iterator[Service]:
    """The same on a database of its own, a copy of an empty one."""
    shutil.copy(template, directory / "test.db")
    engine = databases.connect(f"sqlite:///{directory / 'test.db'}")
    try:
        with running(engine, directory, text) as service:
            yield service
    finally:
        engine.dispose()


def optimize(engine: Engine, live: LiveConfiguration, job_ids: Any, now: datetime | None = None) -> None:
    if job_ids:
        batch.optimize(engine, live.current, list(job_ids), now=now or utc_now())


#: Seconds between two looks of a server at whether it is to end.
_TICK = 0.01


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[str]:
    bound = serve.bind_socket("127.0.0.1", 0)
    bound.listen()  # whoever comes before the server has started waits for it, instead of being refused
    config = serve.configuration(app, log_level="warning", trusted_proxies=["127.0.0.1"])
    config.timeout_graceful_shutdown = 5
    config.timeout_keep_alive = 300  # an idle client closes first: none sends into a closing connection
    server = _Server(config, app)
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(300)
        bound.close()


class _Server(uvicorn.Server):
    """Ends as uvicorn does, without its waits of a tenth of a second each: hundreds of tests stop one."""

    def __init__(self, config: uvicorn.Config, app: object) -> None:
        super().__init__(config)
        self._app = app

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(_TICK)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        if isinstance(self._app, FastAPI):
            self._app.state.parts.job_events.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:
                    await asyncio.sleep(_TICK)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()
