"""`pilotage director` as a process: its exit status, the check of its file, its end while a task hangs."""

import json
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
import yaml

from examples.servers.starting import wait_until
from pilotage.cli import process_setup
from pilotage.cli.processes import director, site_process
from pilotage.cli.processes.director import DirectorProcess
from pilotage.client.api import ServiceAway
from pilotage.fabric.director.configuration import DirectorFile, DirectorQueue, InvalidDirector
from pilotage.service.services import utc_now
from tests.support.processes import PILOTAGE
from tests.support.servers import http_servers
from tests.support.service import Service

QUEUE = "LCG.A.org/ce1/long"


CONFIG = """
Resources:
  Sites:
    LCG.A.org: {VO: [cms], CEs: {ce1: {MaxRAM: 4000, Queues: {long: {CPUTime: 100000}}}}}
Registry:
  VO: {cms: {}}
"""
pytestmark = pytest.mark.config(CONFIG)


def run(service: Service, directory: Path, *words: str, **queue: Any) -> "subprocess.CompletedProcess[str]":
    """A director whose first batch system works, while the commands of the second are not there."""
    token = directory / "token"
    token.write_text(service.token("director", vo="cms", user="dora"))
    jobs = {"directory": str(directory / "jobs")}
    systems: dict[str, Any] = {"gone": {"kind": "slurm", "environment": {"PATH": "/nonexistent"}, **jobs}}
    if not queue.pop("alone", False):
        systems["here"] = {"kind": "local", "cores": 1, "memory": 1000, **jobs}
    content = {
        "url": service.url,
        "name": "north",
        "vos": {"cms": {"token_file": str(token)}},
        "systems": systems,
        "queues": [{"queue": QUEUE, "system": "gone", **queue}],
    }
    file = directory / "director.yaml"
    file.write_text(yaml.safe_dump(content))
    command = [str(PILOTAGE), "director", "--config", str(file), "--home", str(directory), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_one_cycle_in_which_nothing_worked_fails_and_names_the_system(
    service: Service, tmp_path: Path
) -> None:
    alone, with_another = run(service, tmp_path, "--once", alone=True), run(service, tmp_path, "--once")

    assert (alone.returncode, with_another.returncode) == (1, 0)
    assert "gone: squeue cannot be run" in alone.stderr
    assert "systems skipped: gone" in with_another.stdout


def test_the_check_shows_which_system_does_not_answer(service: Service, tmp_path: Path) -> None:
    done = run(service, tmp_path, "--check", "--json")

    assert done.returncode == 1
    assert '"system": "here", "error": ""' in " ".join(done.stdout.split())
    assert "squeue cannot be run" in done.stdout


def test_a_file_that_contradicts_its_queue_is_refused_at_the_start(service: Service, tmp_path: Path) -> None:
    for words in ((), ("--once",), ("--check",)):
        done = run(service, tmp_path, *words, memory=8000)

        assert done.returncode == 2
        assert f"queues/{QUEUE}: memory: 8000, but the queue has 4000 (MaxRAM)" in done.stderr


def described(service: Service, directory: Path, **selection: object) -> DirectorProcess:
    token = directory / "token"
    token.write_text(service.token("director", vo="cms", user="dora"))
    content = {
        "url": service.url,
        "name": "north",
        "vos": {"cms": {"token_file": str(token)}},
        "systems": {
            "ce1": {"kind": "local", "cores": 1, "memory": 5000, "directory": str(directory / "jobs")}
        },
        "queues": {"from_tree": selection},
    }
    file = directory / "director.yaml"
    file.write_text(yaml.safe_dump(content))
    return DirectorProcess(described=director.read_director_file(file), file=file)


class _Answering(BaseHTTPRequestHandler):
    """A server with an answer to each path."""

    def find_answer(self) -> tuple[int, bytes]:
        """Status and body."""
        raise NotImplementedError

    def do_GET(self) -> None:
        status, body = self.find_answer()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _OtherServer(_Answering):
    """Answers whatever it is asked with the same text, as a portal of a site does, and notes the tokens."""

    answer = (404, b"<html>")
    shown: list[str | None] = []  # noqa: RUF012 - of the one server of a test

    def find_answer(self) -> tuple[int, bytes]:
        self.shown.append(self.headers["Authorization"])
        return self.answer


def check_with(service: Service, directory: Path, pilot_url: str) -> dict[str, str]:
    """What is wrong with the systems of a director whose pilots get this address."""
    told = described(service, directory, site="LCG.A.org")
    file = told.described.model_copy(update={"pilot_url": pilot_url})
    return dict(replace(told, described=file).check())


OTHERS: dict[str, tuple[int, bytes, str]] = {
    "another installation": (200, b'{"keys": [{"kid": "other"}]}', "its keys are not those of that one"),
    "a page": (200, b"<html>", "no API: "),
    "no keys": (200, b'{"keys": 3}', "it has no keys, and its API needs no token"),
    "a page that is missing": (
        404,
        b"<html>",
        "it has no keys, and no API: the service responds 404 Not Found",
    ),
    "a portal": (401, b"<html>", "no API: the service responds 401 Unauthorized"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_the_check_refuses_an_address_for_pilots_where_another_server_answers(
    kind: str, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, body, seen = OTHERS[kind]
    monkeypatch.setattr(_OtherServer, "answer", (status, body))
    monkeypatch.setattr(_OtherServer, "shown", [])
    other = HTTPServer(("127.0.0.1", 0), _OtherServer)
    address = f"http://127.0.0.1:{other.server_port}"
    with http_servers.answering(other), pytest.raises(InvalidDirector) as refused:
        check_with(service, tmp_path, address)
    told = f"pilot_url: {address} is another server than the service at {service.url} (url): "
    assert told in str(refused.value)
    assert seen in str(refused.value)
    assert set(_OtherServer.shown) == {None}, "a director's token is for its service only"


def test_the_check_takes_another_address_of_the_service_for_pilots(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = service.url.replace("127.0.0.1", "localhost")
    assert other != service.url
    assert check_with(service, tmp_path, other) == {"ce1": ""}
    assert "pilot_url" not in caplog.text


class _ApiProxy(_Answering):
    """Passes on what is asked below /api/v1, and nothing else, as pilots need no more."""

    behind = ""  # the address of the service; empty: it is away

    def find_answer(self) -> tuple[int, bytes]:
        if not self.path.startswith("/api/v1/"):
            return 403, b"<html>"
        if not self.behind:
            return 503, b"<html>"
        answer = httpx.get(f"{self.behind}{self.path}", trust_env=False, timeout=300)
        return answer.status_code, answer.content


def test_the_check_takes_a_proxy_for_pilots_that_passes_only_the_api(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_ApiProxy, "behind", service.url)
    proxy = HTTPServer(("127.0.0.1", 0), _ApiProxy)
    address = f"http://127.0.0.1:{proxy.server_port}"
    with http_servers.answering(proxy):
        assert check_with(service, tmp_path, address) == {"ce1": ""}
    assert f"pilot_url: a service answers at {address}, but keys cannot be compared" in caplog.text


def test_the_check_warns_of_a_proxy_for_pilots_whose_service_is_away(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_ApiProxy, "behind", "")
    proxy = HTTPServer(("127.0.0.1", 0), _ApiProxy)
    address = f"http://127.0.0.1:{proxy.server_port}"
    with http_servers.answering(proxy):
        assert check_with(service, tmp_path, address) == {"ce1": ""}
    assert "pilot_url: from this host, " in caplog.text
    assert f"try `curl {address}/api/v1/tokens/me` there" in caplog.text


def test_the_check_warns_of_an_address_for_pilots_that_this_host_does_not_reach(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:  # a port that is taken, and where nobody listens
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert check_with(service, tmp_path, f"{address}/") == {"ce1": ""}
    assert f"pilot_url: from this host, {address} cannot be reached" in caplog.text
    assert f"try `curl {address}/api/v1/tokens/me` there" in caplog.text


def test_queues_come_from_the_tree_and_follow_it(service: Service, tmp_path: Path) -> None:
    told = described(service, tmp_path, site="LCG.A.org")
    command = [
        str(PILOTAGE),
        "director",
        "--config",
        str(told.file),
        "--home",
        str(tmp_path),
        "--check",
        "--json",
    ]
    assert json.loads(subprocess.check_output(command, timeout=300)) == [{"system": "ce1", "error": ""}]

    before = told.find_tree_queues()
    assert [(each.queue, each.system, each.batch_queue) for each in before.queues] == [
        (QUEUE, "ce1", "local")
    ]

    change = {"set": {"Resources/Sites/LCG.A.org/CEs/ce1/Queues/short/CPUTime": 300}}
    answer = service.operator().patch("/api/v1/config", json=change, headers={"If-Match": '"1"'})
    assert answer.status_code == 200, answer.text
    after = wait_until(lambda: (now := told.find_tree_queues()) != before and now)
    assert [each.queue for each in after.queues] == [QUEUE, "LCG.A.org/ce1/short"]


def test_a_queue_that_is_resumed_gets_pilots_and_one_that_is_removed_leaves_after_one_cycle(
    service: Service, tmp_path: Path
) -> None:
    change = {"set": {"Resources/Sites/LCG.A.org/CEs/ce1/Queues/short/CPUTime": 300}}
    operator, short = service.operator(), "LCG.A.org/ce1/short"
    answer = operator.patch("/api/v1/config", json=change, headers={"If-Match": '"1"'})
    assert answer.status_code == 200, answer.text
    operator.post(f"/api/v1/resources/queues/{short}/drain", json={}).raise_for_status()
    told = described(service, tmp_path, site="LCG.A.org")
    found = told.find_tree_queues()
    assert [each.queue for each in found.queues] == [QUEUE]
    ticks = [0.0]
    tree = director.TreeWatch(process=told, found=found, clock=lambda: ticks[0])

    def cycle(described: DirectorFile) -> tuple[DirectorFile | None, list[str]]:
        with director.open_director(described) as made:
            made.patience = 300  # however slow the host is
            summary = made.cycle(utc_now())
            made.end()
            return tree.find_changed(made.config_version), summary.list_problems()

    assert cycle(found) == (None, [])
    operator.post(f"/api/v1/resources/queues/{short}/resume", json={}).raise_for_status()
    resumed, _ = cycle(found)
    assert resumed is not None
    assert [each.queue for each in resumed.queues] == [QUEUE, short]

    tree.found = resumed
    version = operator.get("/api/v1/config").json()["version"]
    change = {"remove": ["Resources/Sites/LCG.A.org/CEs/ce1/Queues/short"]}
    answer = operator.patch("/api/v1/config", json=change, headers={"If-Match": f'"{version}"'})
    assert answer.status_code == 200, answer.text
    removed, problems = cycle(resumed)
    assert problems == [f"{short}: no such queue"]
    assert removed is not None
    assert [each.queue for each in removed.queues] == [QUEUE]
    tree.found = removed
    assert cycle(removed) == (None, [])


def test_the_tree_is_read_again_after_a_failure_a_change_and_a_while(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = described(service, tmp_path, site="LCG.A.org")
    found = told.find_tree_queues()
    reads: list[float] = []
    ticks = [0.0]

    def read(_: DirectorProcess) -> DirectorFile:
        reads.append(ticks[0])
        if ticks[0] == 60:
            raise ServiceAway("no route to host")
        return found

    monkeypatch.setattr(DirectorProcess, "find_tree_queues", read)
    tree = director.TreeWatch(process=told, found=found, clock=lambda: ticks[0])

    for ticks[0], version in ((60, 7), (120, 7), (180, 7), (240, 6), (300, 6), (839, 6), (840, 6), (900, 7)):
        assert tree.find_changed(version) is None

    assert reads == [60, 120, 240, 840, 900], "the first one fails; 6 is of a restored backup"


def test_a_selection_without_queues_ends_a_director_at_its_start(service: Service, tmp_path: Path) -> None:
    described(service, tmp_path, site="LCG.B.org")
    command = [
        str(PILOTAGE),
        "director",
        "--config",
        str(tmp_path / "director.yaml"),
        "--home",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 2
    assert (
        'no queue of the tree that the VOs of the director may use is at {"site":["LCG.B.org"]}'
        in done.stderr
    )


def test_a_change_of_the_tree_that_contradicts_the_file_does_not_end_a_director(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(director, "_TREE_SECONDS", 0.0)
    told = described(service, tmp_path, site="LCG.A.org")
    listed = DirectorQueue(queue=QUEUE, system="ce1", batch_queue="local", memory=4000)
    file = told.described.model_copy(update={"queues": (listed,), "polling_time": 0.1})
    process = replace(told, described=file)
    stop, statuses = Event(), list[int]()
    monkeypatch.setattr(process_setup, "stop_on_signals", lambda: stop)
    running = Thread(
        target=lambda: statuses.append(site_process.run_until_signal(process, lambda _: None, as_json=True))
    )
    running.start()
    try:
        wait_until(lambda: service.operator().get("/api/v1/site-processes").json()["processes"])
        queues = "Resources/Sites/LCG.A.org/CEs/ce1/Queues"
        change = {"set": {f"{queues}/short/CPUTime": 300, f"{queues}/long/MaxRAM": 3000}}
        answer = service.operator().patch("/api/v1/config", json=change, headers={"If-Match": '"1"'})
        assert answer.status_code == 200, answer.text
        wait_until(lambda: statuses or "the tree has changed: " in caplog.text)
        assert not statuses
    finally:
        stop.set()
        running.join(300)
    assert statuses == [0]


#: Runs a child that no TERM ends, and tells its process id.
_HANGING = """
import os, signal, sys, time
from pilotage.cli import process_setup
def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    while True:
        time.sleep(60)
sys.exit(process_setup.run_apart(hang, patience=0.1))
"""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_ends_although_its_work_hangs_and_its_child_with_it(by: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _HANGING], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            child = int(process.stdout.readline())

            process.send_signal(by)

            assert process.wait(300) == (1 if by is signal.SIGTERM else -signal.SIGKILL)
            assert process.stdout.read() == "", "the pipe is closed when the child has ended"
        finally:
            process.kill()
    assert child != process.pid


def test_the_status_of_the_work_is_that_of_the_process() -> None:
    code = "import sys; from pilotage.cli import process_setup; "
    code += "sys.exit(process_setup.run_apart(lambda: 3, patience=1))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
