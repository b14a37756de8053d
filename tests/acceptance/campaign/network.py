"""Links between processes that can be cut, slowed or silenced: TCP forwarders in a thread of ours."""

import asyncio
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

#: A port of this host, or a unix socket.
Target = int | Path
_CHUNK = 65536


class LinkState(StrEnum):
    """What a link does with bytes."""

    OPEN = "open"
    CUT = "cut"  #: connections are reset, new ones too
    SILENT = "silent"  #: nothing arrives until it opens again
    SLOW = "slow"  #: each chunk is delayed
    NO_ANSWERS = "no answers"  #: requests arrive; the connection is reset instead of an answer


@dataclass
class Link:
    """A port of this host from which connections lead to the first target that accepts them."""

    name: str
    targets: list[Target]
    port: int = 0
    state: LinkState = LinkState.OPEN
    delay: float = 0.2  #: seconds for each chunk of a slow link
    writers: set[asyncio.StreamWriter] = field(default_factory=set)


class Network:
    """All links of an installation."""

    def __init__(self, seed: int) -> None:
        self.links: dict[str, Link] = {}
        self._random = random.Random(seed)
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        """End all links and connections."""
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def add_link(self, name: str, targets: Sequence[Target]) -> Link:
        link = self.links[name] = Link(name, list(targets))
        asyncio.run_coroutine_threadsafe(self._listen(link), self._loop).result()
        return link

    def set_state(self, link: Link, state: LinkState) -> None:
        """Change what the link does from now on; a cut ends its connections."""

        async def change() -> None:
            link.state = state
            if state is LinkState.CUT:
                for writer in list(link.writers):
                    writer.transport.abort()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result()

    async def _listen(self, link: Link) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connect(link, reader, writer)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._servers.append(server)
        link.port = server.sockets[0].getsockname()[1]

    async def _connect(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link.writers.add(writer)
        far = None
        try:
            far = None if link.state is LinkState.CUT else await self._open(link)
            if far is not None:
                link.writers.add(far[1])
                await asyncio.gather(
                    self._copy(link, reader, far[1], answers=False),
                    self._copy(link, far[0], writer, answers=True),
                )
        finally:
            for each in (writer, *(far[1:] if far else ())):
                each.transport.abort()
                link.writers.discard(each)

    async def _open(self, link: Link) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for target in self._random.sample(link.targets, len(link.targets)):
            with suppress(OSError):
                if isinstance(target, Path):
                    return await asyncio.open_unix_connection(str(target))
                return await asyncio.open_connection("127.0.0.1", target)
        return None

    async def _copy(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                while link.state is LinkState.SILENT:
                    await asyncio.sleep(0.02)
                if link.state is LinkState.CUT or (answers and link.state is LinkState.NO_ANSWERS):
                    break
                if link.state is LinkState.SLOW:
                    await asyncio.sleep(link.delay)
                writer.write(chunk)
                await writer.drain()
        # Either end ends both: half-open connections are not part of HTTP, PostgreSQL or Redis.
        writer.transport.abort() if link.state is not LinkState.OPEN else writer.close()
