"""The director of the benchmark `director`: a process of its own, which imports nothing but what it needs."""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NoReturn

from pilotage.cli import process_setup
from pilotage.cli.processes.director import open_director, read_director_file
from pilotage.client.api import ServiceClient
from pilotage.fabric.director import demand

_CYCLES = 4
#: How a CE behaves, by its number modulo 100.
KINDS: Mapping[int, str] = {7: "hangs", 57: "hangs", 33: "lies", 81: "freezes"}


def _peak_memory() -> int:
    """The most memory that this process had, in MB; unlike `ru_maxrss` without that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


class _Frozen:
    """A batch system whose worker never comes back, as in a frozen file system."""

    def survey(self, *_: object) -> NoReturn:
        threading.Event().wait()
        raise AssertionError


def _count_requests(client: ServiceClient, count: Callable[[], object]) -> None:
    transport = client._http  # noqa: SLF001 - nothing else counts requests on this side
    connect = transport._connect  # noqa: SLF001

    def counted(timeout: float) -> HTTPConnection:
        count()
        return connect(timeout)

    transport._connect = counted  # type: ignore[method-assign]  # noqa: SLF001


def main(file: Path) -> None:
    """Run the cycles of a director and print each as a line of JSON."""
    process_setup.raise_file_limit()
    seconds: list[float] = []
    decide = demand.decide_pilots

    def timed(*of_decision: Any) -> demand.PilotDecision:
        began = time.perf_counter()
        try:
            return decide(*of_decision)
        finally:
            seconds.append(time.perf_counter() - began)

    demand.decide_pilots = timed  # type: ignore[assignment]
    with open_director(read_director_file(file)) as director:
        requests = Counter[str]()
        for vo, client in director.clients.items():
            _count_requests(client, partial(requests.update, [vo]))
        for number, system in enumerate(director.sites.systems.values()):
            if KINDS.get(number % 100) == "freezes":
                system.system = _Frozen()  # type: ignore[assignment]
        for cycle in range(_CYCLES):
            requests.clear()
            began, worked = time.perf_counter(), time.process_time()
            summary = director.cycle(datetime.now(UTC))
            values = {
                "what": f"cycle {cycle + 1}",
                "cycle s": round(time.perf_counter() - began, 2),
                "CPU s": round(time.process_time() - worked, 2),
                "decision s": round(seconds[-1], 2),
                "requests a VO": max(requests.values()),
                "memory MB": _peak_memory(),
                "jobs": summary.jobs,
                "wanted": summary.wanted,
                "submitted": summary.submitted,
                "systems polled": summary.polled,
            }
            sys.stdout.write(json.dumps(values) + "\n")
            sys.stdout.flush()
            time.sleep(2)
    os._exit(0)  # without the threads that hang


if __name__ == "__main__":
    main(Path(sys.argv[1]))
