"""The service speaks TLS itself, with a certificate of an authority of our own that is renewed."""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import uvicorn
import uvloop
from fastapi import FastAPI, Request

from examples.servers.certificates import Authority
from pilotage.cli.processes import client_connections, serve
from pilotage.cli.processes.client_connections import BegunConnection, ClientConnections
from pilotage.cli.processes.tls import AlertingConnection, Certificate
from pilotage.cli.settings import InvalidSettings
from pilotage.client import connection
from tests.support.processes import PILOTAGE
from tests.support.wait import until

NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> tuple[Path, Path]:
    return install(authority, "first", tmp_path)


def install(authority: Authority, name: str, where: Path) -> tuple[Path, Path]:
    """Put a new certificate where the one before was."""
    places = (where / "host.pem", where / "host.key")
    for made, place in zip(authority.sign(name), places, strict=True):
        shutil.copy(made, place)
    return places


def shown(server: ssl.SSLContext, authority: Authority) -> str:
    """The name in the certificate that a client sees, in a handshake without a network."""
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
    served = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, served):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = client.getpeercert() or {}
    return dict(pair[0] for pair in certificate["subject"])["commonName"]  # type: ignore[return-value, arg-type, misc]


def test_a_renewed_certificate_is_shown_without_a_restart(
    authority: Authority, files: tuple[Path, Path], tmp_path: Path
):
    certificate = Certificate(*files)
    assert shown(certificate.context, authority) == "first"
    install(authority, "second", tmp_path)
    certificate.renew(NOW)
    assert shown(certificate.context, authority) == "second"


def test_a_certificate_that_is_half_renewed_is_not_used(
    authority: Authority, files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
):
    certificate = Certificate(*files)
    shutil.copy(authority.sign("third")[0], files[0])
    certificate.renew(NOW)
    assert shown(certificate.context, authority) == "first"
    assert "the certificate was not reloaded" in caplog.text
    files[1].unlink()
    certificate.renew(NOW)
    assert shown(certificate.context, authority) == "first"


def test_a_certificate_that_is_no_good_is_refused_at_the_start(
    authority: Authority, files: tuple[Path, Path], tmp_path: Path
):
    (tmp_path / "other.key").write_text("nonsense")
    for key in (tmp_path / "none.key", tmp_path / "other.key"):
        with pytest.raises(InvalidSettings, match=r"host\.pem with .*\.key"):
            Certificate(files[0], key)


def test_certificate_and_key_may_be_one_file(authority: Authority, files: tuple[Path, Path], tmp_path: Path):
    both = tmp_path / "both.pem"
    both.write_bytes(files[0].read_bytes() + files[1].read_bytes())
    assert shown(Certificate(both, None).context, authority) == "first"


@pytest.mark.parametrize(
    ("trusted", "seen"), [((), ("127.0.0.1", "http")), (("127.0.0.0/8",), ("192.0.2.7", "https"))]
)
def test_only_a_trusted_proxy_says_where_a_request_came_from(trusted: tuple[str, ...], seen: tuple[str, str]):
    app = FastAPI()

    @app.get("/")
    def whence(request: Request) -> list[str]:
        return [request.client.host if request.client else "", request.url.scheme]

    config = serve.configuration(app, log_level="error", trusted_proxies=trusted)
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    said = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/"
    try:
        assert tuple(httpx.get(url, headers=said, trust_env=False, timeout=300).json()) == seen
    finally:
        server.should_exit = True
        thread.join(300)
        bound.close()


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_refused_certificate_gets_an_alert_and_a_line_in_the_log_and_many_have_one(
    authority: Authority,
    files: tuple[Path, Path],
    tmp_path: Path,
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    caplog: pytest.LogCaptureFixture,
):
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    server.verify_mode = ssl.CERT_REQUIRED
    server.sslobject_class = AlertingConnection
    server.load_cert_chain(*files)
    client = ssl.create_default_context(cafile=str(authority.certificate))
    client.load_cert_chain(*Authority(tmp_path).sign("stranger"))
    alerts: list[str] = []

    async def shake_hands(pending: ClientConnections) -> None:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        handshake = BegunConnection(ours, "10.0.0.1")
        handshake.begin(asyncio.Protocol, server, pending)
        assert handshake._task is not None
        try:
            reader, writer = await asyncio.open_connection(
                sock=theirs, ssl=client, server_hostname="localhost"
            )
            await reader.read()
            writer.close()
        except ssl.SSLError as error:
            alerts.append(error.reason)
        await handshake._task

    async def check() -> None:
        pending = ClientConnections(asyncio.Protocol, by_address=True, files=160)
        for _ in range(3):
            await shake_hands(pending)
        pending.note_refused(
            "10.0.0.2", "certificate has expired", now=asyncio.get_running_loop().time() + 60
        )

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(check())
    first, last = [each.getMessage() for each in caplog.records if "is refused" in each.getMessage()]
    assert alerts == ["TLSV1_ALERT_UNKNOWN_CA"] * 3
    assert first.startswith("the certificate or proxy of 10.0.0.1 is refused: ")
    assert "issuer" in first or "signature" in first or "self" in first
    assert last == (
        "the certificate or proxy of 10.0.0.2 is refused: certificate has expired; "
        "2 others since the last line of this kind"
    )


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_handshakes_without_an_end_are_bounded_and_keep_nobody_out(
    authority: Authority,
    files: tuple[Path, Path],
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(client_connections, "_HEAD", 600.0)  # however slow the machine is
    app = FastAPI()

    @app.get("/")
    def whence(request: Request) -> list[str]:
        return [request.client.host if request.client else "", request.url.scheme]

    config = serve.configuration(app, log_level="error", files=160)  # ten from one address
    config.timeout_keep_alive = 300
    bound = serve.bind_socket("127.0.0.1", 0)
    server = serve._Server(config, tls=Certificate(*files).context)
    pending = server.connections

    def run() -> None:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(server.serve(sockets=[bound]))

    ready = threading.Event()
    server._ready = ready.set
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    url = f"https://localhost:{bound.getsockname()[1]}/"
    silent: list[socket.socket] = []
    try:
        assert ready.wait(300)
        silent += [socket.create_connection(bound.getsockname()) for _ in range(30)]
        for each in silent[:20]:  # the oldest make room for others of their address
            each.settimeout(300)
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
        until(lambda: len(pending._all) == 10)
        with httpx.Client(verify=trusting, trust_env=False, timeout=300) as client:
            assert [client.get(url).json() for _ in range(3)] == [["127.0.0.1", "https"]] * 3
        monkeypatch.setattr(client_connections, "_HEAD", 1.0)
        with (
            socket.create_connection(bound.getsockname(), timeout=300) as plain,
            contextlib.suppress(ConnectionError),
        ):
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS
            while plain.recv(100):
                pass
        monkeypatch.setattr(client_connections, "_HEAD", 600.0)
        with trusting.wrap_socket(
            socket.create_connection(bound.getsockname()), server_hostname="localhost"
        ) as early:
            early.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert early.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        for each in silent:
            each.close()
        server.should_exit = True
        thread.join(300)
        bound.close()
    assert not thread.is_alive()
    assert not pending._all


@pytest.fixture(scope="module")
def home(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a whole installation that speaks TLS."""
    home = tmp_path_factory.mktemp("home")
    certificate, key = authority.sign("whole")
    (home / "pilotage.yaml").write_text(f"authorities: {authority.certificate}\n")
    (home / "grid.yaml").write_text(
        "Resources: {Sites: {LCG.A.org: {VO: [cms], CEs: {ce: {Queues: {q: {CPUTime: 100000}}}}}}}\n"
        "Registry: {VO: {cms: {}}}\n"
    )
    words = ["up", "--json", "--port", "0", "--resources", home / "grid.yaml", "--site", "LCG.A.org"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(each) for each in (PILOTAGE, *words, "--tls-certificate", certificate, "--tls-key", key)],
            env={"PILOTAGE_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=log,
        )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), (home / "log").read_text()
            yield home
        finally:
            process.terminate()


def pilotage(home: Path, *words: str) -> str:
    environment = {"PILOTAGE_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(
        [PILOTAGE, *words], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_and_pilots_believe_the_authority_that_is_named(home: Path):
    assert connection.read_client_env(home)["PILOTAGE_URL"].startswith("https://")
    (home / "job.jdl").write_text('[Executable = "/bin/true"; VO = "cms";]')
    [job_id] = json.loads(pilotage(home, "job", "submit", "--json", str(home / "job.jdl")))["job_ids"]
    said = pilotage(home, "job", "wait", "--json", str(job_id))
    assert '"Done"' in said


def test_nobody_speaks_without_tls_or_to_another_authority(home: Path, tmp_path: Path):
    url = connection.read_client_env(home)["PILOTAGE_URL"]
    with pytest.raises(httpx.TransportError):
        httpx.get(url.replace("https:", "http:"), trust_env=False, timeout=300)
    other = Authority(tmp_path)
    context = ssl.create_default_context(cafile=str(other.certificate))
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{url}/healthz", verify=context, trust_env=False, timeout=300)


def test_answers_over_tls_say_that_it_has_to_stay_so(home: Path, authority: Authority):
    context = ssl.create_default_context(cafile=str(authority.certificate))
    url = connection.read_client_env(home)["PILOTAGE_URL"]
    answer = httpx.get(f"{url}/login", verify=context, trust_env=False, timeout=300)
    assert "max-age" in answer.headers["Strict-Transport-Security"]
