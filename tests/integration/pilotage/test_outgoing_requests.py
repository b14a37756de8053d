"""No server that we send requests to holds a process for ever, or fills its memory."""

import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.servers.certificates import Authority
from pilotage.bounded_http import BoundedTransport
from pilotage.cli.commands import downtime
from pilotage.cli.errors import CommandRefused
from pilotage.client.api import ServiceAway, _ClientTransport
from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.pilot.service.transport import Away, TooLarge, Transport
from pilotage.plugins.arc import rest as arc
from pilotage.plugins.dirac import command as dirac_history
from pilotage.plugins.formats import dirac_server
from pilotage.plugins.kubernetes import api as kubernetes
from pilotage.plugins.web_hooks import sender as web_hooks
from pilotage.plugins.web_hooks.messages import SendResult
from pilotage.service.auth.oidc import discovery
from pilotage.service.auth.oidc.discovery import IssuerAway
from pilotage.service.auth.oidc.issuer import Issuer
from tests.support.servers.http_proxy import ForwardProxy

ROOT = Path(__file__).parents[3]
AWAY = (IssuerAway, BatchSystemAway, CommandRefused, Away, ServiceAway, TooLarge)
HEAD = b"HTTP/1.1 200 OK\r\n"
BODY = HEAD + b"Content-Type: application/json\r\n\r\n["
FEED = HEAD + b"Connection: close\r\nContent-Length: 4\r\n\r\nfeed"
PACKED = HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"


def drip(connection: socket.socket, stop: threading.Event) -> None:
    while not stop.wait(0.02):
        connection.sendall(b"1")


def pour(connection: socket.socket, stop: threading.Event) -> None:
    while not stop.is_set():
        connection.sendall(b"1" * 65536)


def be_silent(_: socket.socket, stop: threading.Event) -> None:
    stop.wait()


def repeat(connection: socket.socket, stop: threading.Event) -> None:
    while not stop.wait(0.01):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


#: What a server sends first, and then without end.
SERVERS: Mapping[str, tuple[bytes, Callable[[socket.socket, threading.Event], None]]] = {
    "says nothing": (b"", be_silent),
    "sends its head a byte at a time": (HEAD + b"X: ", drip),
    "sends a head without end": (HEAD + b"X: ", pour),
    "only ever says that it continues": (b"", repeat),
    "sends its body a byte at a time": (BODY, drip),
    "sends a body without end": (BODY, pour),
}
#: Those whose head is whole, which is all that matters to a web hook.
WITH_HEAD = frozenset(name for name, (first, _) in SERVERS.items() if first == BODY)


@contextmanager
def serving(kind: str, tls: ssl.SSLContext | None) -> Iterator[int]:
    """A server of a kind; its port."""
    first, go_on = SERVERS[kind]
    stop = threading.Event()

    def answer(accepted: socket.socket) -> None:
        with suppress(OSError), ExitStack() as stack:
            stack.enter_context(accepted)
            if tls is not None:
                accepted = stack.enter_context(tls.wrap_socket(accepted, server_side=True))
            accepted.recv(65536)
            accepted.sendall(first)
            go_on(accepted, stop)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=answer, args=(listener.accept()[0],)))
                threads[-1].start()

    listener = socket.create_server(("127.0.0.1", 0))
    threads = [threading.Thread(target=accept)]
    threads[0].start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in threads:
            each.join()


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def fetch_issuer(url: str, authorities: Path) -> object:
    return discovery.fetch(Issuer(name="a", url=url, audiences=frozenset({"b"}), authorities=authorities))


def list_arc_jobs(url: str, authorities: Path) -> object:
    return arc.ArcRest(url, arc.Credentials(authorities=authorities)).jobs()


def list_cluster_jobs(url: str, authorities: Path) -> object:
    token = authorities.parent / "token"
    token.write_text("secret")
    server = kubernetes.ApiServer(url=url, namespace="a", authorities=authorities, token_file=token)
    return kubernetes.KubernetesApi(server).list("jobs")


def fetch_dirac_configuration(url: str, authorities: Path) -> object:
    return dirac_server.fetch_configuration(url, certificate=None, authorities=authorities)


def send_history(url: str, authorities: Path) -> object:
    return dirac_history.send(url, "index", [{"a": 1}], authorities)


def fetch_feed(url: str, _: Path) -> object:
    return downtime._download(url)


def send_hook(url: str, authorities: Path) -> SendResult:
    context = ssl.create_default_context(cafile=str(authorities))
    return web_hooks.HookSender(allowed=["127.0.0.0/8"], tls=context).send(url, b"{}", {})


def call_service(url: str, authorities: Path) -> object:
    context = ssl.create_default_context(cafile=str(authorities))
    return Transport(url, "secret", timeout=0.3, context=context).call("GET", "/jobs")


def download_sandbox(url: str, authorities: Path) -> object:
    context = ssl.create_default_context(cafile=str(authorities))
    with (authorities.parent / "sandbox").open("wb") as to:
        return Transport(url, "secret", timeout=0.3, context=context).download("/x", to, limit=1 << 20)


def call_service_as_client(url: str, authorities: Path) -> object:
    context = ssl.create_default_context(cafile=str(authorities))
    return _ClientTransport(url, "secret", whose="", timeout=0.3, context=context).call("GET", "/jobs")


#: Each request to a server of somebody else, with the module that has its bounds, and their names.
REQUESTS: Mapping[str, tuple[Callable[[str, Path], object], object, str, str]] = {
    "keys of an issuer": (fetch_issuer, discovery, "TIMEOUT", "MOST"),
    "ARC": (list_arc_jobs, arc, "LONGEST", "MOST"),
    "Kubernetes": (list_cluster_jobs, kubernetes, "LONGEST", "MOST"),
    "DIRAC's configuration": (fetch_dirac_configuration, dirac_server, "LONGEST", "MOST_ANSWERED"),
    "OpenSearch": (send_history, dirac_history, "LONGEST", "MOST_ANSWERED"),
    "feed of downtimes": (fetch_feed, downtime, "LONGEST", "MOST"),
    "web hook": (send_hook, web_hooks, "TRY_SECONDS", "_MOST"),
    "the service, by a pilot": (call_service, Transport, "", "longest_answer"),
    "a sandbox, by a pilot": (download_sandbox, Transport, "", ""),
    "the service, by a client": (call_service_as_client, _ClientTransport, "", "longest_answer"),
}


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_ends_whatever_its_server_sends(
    name: str, kind: str, authority: Authority, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, owner, seconds, most = REQUESTS[name]
    is_delivered = request is send_hook and kind in WITH_HEAD
    if seconds:
        monkeypatch.setattr(owner, seconds, 300.0 if is_delivered else 0.3)
    if most:
        monkeypatch.setattr(owner, most, 1 << 20)
    with serving(kind, tls) as port:
        url = f"https://localhost:{port}"
        if request is send_hook:
            assert send_hook(url, authority.certificate).is_delivered is is_delivered
        else:
            with pytest.raises(AWAY, match=rf"localhost:{port}|has more than 1048576 bytes"):
                request(url, authority.certificate)


#: Modules that make connections, with what bounds those which are not in the list above.
CONNECTING: Mapping[str, str] = {
    "pilotage/bounded_http.py": "",
    "pilotage/cli/commands/downtime.py": "",
    "pilotage/fabric/batch/ssh_shell.py": "head node of a site: each command ends if nothing moves",
    "pilotage/fabric/pilot/service/transport.py": "",
    "pilotage/plugins/arc/rest.py": "",
    "pilotage/plugins/dirac/command.py": "",
    "pilotage/plugins/dirac/former.py": "former services: asyncio.timeout, bounds.FORMER_BYTES",
    "pilotage/plugins/formats/dirac_server.py": "",
    "pilotage/plugins/kubernetes/api.py": "",
    "pilotage/plugins/web_hooks/mail.py": "the operator's mail server: closed after TRY_SECONDS",
    "pilotage/service/auth/oidc/discovery.py": "",
    "taskqueue/blob_stores/s3.py": "the operator's object store: each read, as for the database",
}
MAKES_CONNECTIONS = re.compile(
    r"httpx\.(?:Async)?Client\(|HTTPTransport\(|ConnectionPool\(|urlopen\(|HTTPS?Connection\("
    r"|open_connection\(|create_connection\(|smtplib\.SMTP(?:_SSL)?\(|asyncssh\.connect\(|\.create_client\("
)


def test_no_other_module_makes_connections() -> None:
    packages = (
        "agents",
        "cs_config",
        "matcher",
        "optimizers",
        "packages",
        "pilotage",
        "requirements",
        "taskqueue",
    )
    found = {
        str(file.relative_to(ROOT))
        for package in packages
        for file in (ROOT / package).rglob("*.py")
        if MAKES_CONNECTIONS.search(file.read_text())
    }
    assert found == CONNECTING.keys()


@contextmanager
def answering(answer: bytes, tls: ssl.SSLContext) -> Iterator[str]:
    """A server that answers one request so; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError), tls.wrap_socket(listener.accept()[0], server_side=True) as connection:
                connection.recv(65536)
                connection.sendall(answer)
                while connection.recv(65536):  # closed with unread bytes it would take the answer back
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://localhost:{listener.getsockname()[1]}"


@pytest.fixture
def tls(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*authority.sign("host"))
    return made


def test_the_proxy_of_the_environment_is_used_where_a_caller_wants_it(
    tls: ssl.SSLContext, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(FEED, tls) as url, ForwardProxy(authorization="Basic bWU6c2VjcmV0") as between:
        monkeypatch.setenv("HTTPS_PROXY", between.url.replace("//", "//me:secret@"))
        assert downtime._download(url) == b"feed"
    assert between.asked == [f"CONNECT {url.removeprefix('https://')}"]
    with answering(FEED, tls) as url, ForwardProxy() as between:
        monkeypatch.setenv("HTTPS_PROXY", between.url)
        with pytest.raises(BatchSystemAway):
            list_arc_jobs(url, authority.certificate)
    assert between.asked == [], "no proxy sees the token of a CE"


def test_redirects_are_named_and_what_is_compressed_is_not_unpacked(tls: ssl.SSLContext) -> None:
    led = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/x\r\nContent-Length: 0\r\n\r\n"
    with answering(led, tls) as url, pytest.raises(CommandRefused, match=r"302, which leads to http://127"):
        downtime._download(url)
    with answering(PACKED, tls) as url, pytest.raises(CommandRefused, match="the answer is compressed"):
        downtime._download(url)


def test_a_web_hook_is_delivered_whose_answer_nobody_could_read(
    tls: ssl.SSLContext, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_hooks, "TRY_SECONDS", 300.0)
    with answering(PACKED, tls) as url:
        assert send_hook(url, authority.certificate).is_delivered


def test_a_feed_is_trusted_by_the_authorities_of_the_host(
    tls: ssl.SSLContext, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(context: ssl.SSLContext, *_: object) -> None:
        context.load_verify_locations(authority.certificate)

    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)  # of an institute, say
    with answering(FEED, tls) as url:
        assert downtime._download(url) == b"feed"


def test_an_address_that_is_silent_leaves_time_for_the_next(
    tls: ssl.SSLContext, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def look_up(host: str, port: int, *_: object, **__: object) -> list[Any]:
        named = ("127.0.0.2", "127.0.0.1") if host == "localhost" else (host,)
        return [found for each in named for found in resolve(each, port, 0, socket.SOCK_STREAM)]

    def connect_or_wait(self: socket.socket, address: Any) -> None:
        if address[0] == "127.0.0.2":
            waited.append(self.gettimeout() or 0)
            raise TimeoutError("timed out")
        connect(self, address)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket.socket, "connect", connect_or_wait)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    bounded = BoundedTransport(context, seconds=600, most=1 << 20, clock=lambda: sum(waited))
    with answering(FEED, tls) as url, httpx.Client(transport=bounded, timeout=600) as client:
        assert client.get(url).content == b"feed"
    assert waited == [300], "half of the time is for the other address"
