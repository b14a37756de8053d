"""A job of one VO that looks for the secrets of pilots of another one, with real processes."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples.servers.starting import wait_until
from examples.servers.supervised import kill_all
from tests.support.directors_on_slurm import Field
from tests.support.namespaces import userns, visible_directory
from tests.support.service import running_on_sqlite

CONFIG = """
Resources:
  Sites:
    LCG.North.org:
      CPUTime: 3600
      MaxRAM: 300
      CEs:
        ce01:
          Queues:
            short: {MaxTotalJobs: 10, MaxWaitingJobs: 10}
Registry:
  VO: {biomed: {}, lhcb: {}}
  Groups:
    biomed_user: {VO: biomed}
    lhcb_user: {VO: lhcb}
"""
QUEUE = "LCG.North.org/ce01/short"
#: Waits until it may begin, then tells what it got: directory, address of the service, port of the test.
THIEF = r"""
import glob, json, os, re, socket, sys, urllib.error, urllib.request
place, url, port = sys.argv[1:]
link = socket.create_connection(("127.0.0.1", int(port)))
link.recv(1)


def post(path, body, credential):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + credential}
    request = urllib.request.Request(url + "/api/v1" + path, json.dumps(body).encode(), headers)
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        return {"error": error.code}


def read(file):
    try:
        with open(file, "rb") as opened:
            return opened.read().decode(errors="replace")
    except OSError:
        return ""


def ask(token):
    slot = {"CPUTime": 600, "MaxRAM": 300, "NumberOfProcessors": 1}
    where = {"Site": "LCG.North.org", "GridCE": "ce01", "Queue": "short"}
    body = {"request_id": "6f1b1c1e-7a52-4a63-9a3c-0d3f6f0b7c12", **where, **slot}
    return post("/matcher/requestJob", body, token)


seen = [os.path.join(top, name) for top, _, names in os.walk(place) for name in names]
texts = [(file, read(file)) for file in seen]
processes = []
for process in glob.glob("/proc/[0-9]*"):
    about = read(process + "/cmdline")
    try:
        about += os.readlink(process + "/cwd")
    except OSError:
        pass  # of a process that keeps its memory to itself, as a pilot does: its words can still be read
    if int(process[6:]) == os.getpid() or not (place in about or url in about):
        continue  # of others on this host
    processes.append(about)
    for file in (process + "/environ", *glob.glob(process + "/fd/*")):
        if os.path.isfile(file):
            texts.append((file, read(file)))
secrets = [(*pair, file) for file, text in texts
           for pair in re.findall(r"printf %s (\S+) .*?--stamp=([^' ]+)", text, re.S)]
exchanges, taken = [], []
for number, (secret, stamp, _) in enumerate(secrets):
    body = {"request_id": "6f1b1c1e-7a52-4a63-9a3c-%012d" % number}
    answer = post("/pilots/" + stamp + "/token", body, secret)
    exchanges.append("token" in answer)
    taken += ask(answer["token"]).get("matches", []) if "token" in answer else []
tokens = [text.strip() for file, text in texts if ".token" in file]
pilots = sum("--stamp=" in each and "printf" not in each for each in processes)
found = {"files": seen, "secrets": len(secrets), "tokens": len(tokens), "exchanged": sum(exchanges),
         "taken": [each["job_id"] for each in taken], "pilots": pilots}
link.sendall(json.dumps(found).encode() + b"\n")
"""
FOUND_NOTHING = {"files": [], "secrets": 0, "tokens": 0, "exchanged": 0, "taken": [], "pilots": 0}


class LocalField(Field):
    """With one core of this host, so that a second pilot waits for the first one."""

    isolation = ()

    def system(self) -> dict[str, Any]:
        return {"kind": "local", "directory": str(self.directory / "jobs"), "cores": 1, "memory": 1000}


@pytest.fixture
def field(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalField]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with visible_directory() as directory, running_on_sqlite(sqlite_template, tmp_path, CONFIG) as service:
        yield LocalField(service, None, directory, vos=("biomed", "lhcb"))  # type: ignore[arg-type]
        end_pilots(directory)


def end_pilots(directory: Path) -> None:
    """End what a host runs whose director is gone."""
    kill_all(lambda: _list_below(directory))
    wait_until(lambda: not _list_below(directory))


def _list_below(directory: Path) -> set[psutil.Process]:
    """Processes whose command names the directory, with their children; one that has ended has none."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(directory) in word for word in process.cmdline()):
                found |= {process, *process.children(recursive=True)}
    return found


def steal(field: LocalField, words: Sequence[str]) -> tuple[Mapping[str, Any], int]:
    """What a job of biomed gets while a pilot of lhcb waits for its slot, and the job of lhcb."""
    field.tell({QUEUE: "local"}, *words)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(300)
        port = str(listening.getsockname()[1])
        arguments = ["-I", "-c", THIEF, str(field.directory), field.service.url, port]
        field.submit("biomed", 1, Executable="/usr/bin/python3", Arguments=arguments)
        assert field.once()["submitted"] == 1
        link, _ = listening.accept()
    with link:
        link.settimeout(300)
        (wanted,) = field.submit("lhcb", 1)
        assert field.once()["submitted"] == 1
        (job,) = {file.parent for file in field.directory.glob("jobs/**/job")} - {
            file.parent for file in field.directory.glob("jobs/**/started")
        }
        assert "printf %s" in (job / "job").read_text()
        link.sendall(b"!")
        with link.makefile() as answer:
            found: dict[str, Any] = json.loads(answer.readline())
    return found, wanted


@userns
@pytest.mark.parametrize("words", [(), ("--isolation=userns",), ("--isolation=strongest",)])
def test_a_job_gets_nothing_of_the_pilots_of_another_vo(field: LocalField, words: Sequence[str]) -> None:
    found, _ = steal(field, words)
    assert found == FOUND_NOTHING

    with field.director() as director:
        field.wait_until_done(director)
    assert sorted(pilot["jobs"] for pilot in field.pilots()) == [1, 1]


def test_without_isolation_jobs_of_one_account_trust_each_other(field: LocalField) -> None:
    """What the documentation warns of, and what the job above tries."""
    found, wanted = steal(field, ["--isolation=none"])

    assert found["taken"] == [wanted]
    assert found["tokens"] >= 2
    assert found["pilots"] >= 1
    assert os.path.basename(field.file) in map(os.path.basename, found["files"])  # noqa: PTH119 - of strings
