"""A server of S3 (moto's), a process of its own; what it keeps is gone when it ends."""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import botocore.session
import httpx
import pytest

from examples.servers.starting import free_port, wait_until
from taskqueue.blob_stores.place import S3Place
from taskqueue.blob_stores.s3 import S3Store

BUCKET = "archives"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "pilotage", "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests"}


class S3Server:
    """A server with one bucket."""

    def __init__(self) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port = self.url.rpartition(":")[2]
        words = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port)
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers)
        self.client().create_bucket(Bucket=BUCKET)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def client(self) -> Any:
        session = botocore.session.Session()
        session.set_credentials(*CREDENTIALS.values())
        return session.create_client("s3", region_name="us-east-1", endpoint_url=self.url)

    def check_keys(self, *, wanted: bool) -> None:
        """Refuse requests with unknown keys, as all are here."""
        count = b"0" if wanted else b"inf"
        address = f"{self.url}/moto-api/reset-auth"
        httpx.post(address, content=count, trust_env=False, timeout=300).raise_for_status()

    def place(self, prefix: str | None = None) -> S3Place:
        """A place in its bucket, without a prefix given a new one."""
        prefix = secrets.token_hex(8) if prefix is None else prefix
        return S3Place(bucket=BUCKET, prefix=prefix, endpoint=self.url, region="us-east-1")

    def list_keys(self, place: S3Place) -> list[str]:
        """All objects below a place, and uploads that are under way."""
        below = {"Bucket": BUCKET, "Prefix": f"{place.prefix}/"}
        client = self.client()
        found = [each["Key"] for each in client.list_objects_v2(**below).get("Contents", ())]
        return found + [each["Key"] for each in client.list_multipart_uploads(**below).get("Uploads", ())]

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/moto-api/", trust_env=False).is_success
        return False


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """A server that runs, until the end or until it is killed."""
    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.kill()


def make_store(place: S3Place, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """A store with credentials as operators give them."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return S3Store(place)
