"""`pilotage config import dirac URL`, with a server that answers as DIRAC's Configuration Server does."""

import base64
import json
import ssl
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from examples.servers.certificates import Authority
from pilotage.plugins.formats import dirac_server
from tests.support.commands import Run, run
from tests.support.servers.http_servers import answering

__all__ = ["run"]

CFG = "Resources { Sites { LCG { LCG.A.ch { CEs { ce { Queues { long { } } } } } } } }\n"


@dataclass(kw_only=True)
class ConfigurationServer:
    """Asks for a client certificate, and answers what is set."""

    url: str = ""
    answer: bytes = b""
    asked: list[dict[str, list[str]]] = field(default_factory=list)

    def publish(self, text: str) -> None:
        data = base64.b64encode(zlib.compress(text.encode())).decode()
        value = {"newestVersion": "2026-11-23 10:00:00.000", "data": data}
        self.answer = json.dumps({"OK": True, "Value": value}).encode()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Iterator[ConfigurationServer]:
    told = ConfigurationServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.asked.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(told.answer)

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("host"))
    context.load_verify_locations(cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    told.url = f"https://127.0.0.1:{httpd.server_port}/Configuration/Server"
    with answering(httpd):
        yield told


@pytest.fixture
def arguments(server: ConfigurationServer, authority: Authority, tmp_path: Path) -> list[object]:
    proxy, ours = tmp_path / "proxy.pem", tmp_path / "ours.yaml"
    proxy.write_bytes(b"".join(each.read_bytes() for each in authority.sign("ada")))
    ours.write_text("Resources: {}\n")
    trust = ("--certificate", proxy, "--authorities", authority.certificate)
    return ["config", "import", "dirac", server.url, "--file", ours, *trust]


def test_the_configuration_of_a_running_server_is_imported(
    run: Run, server: ConfigurationServer, arguments: list[object]
) -> None:
    server.publish(CFG)
    status, out, err = run(*arguments, "--yaml")
    assert (status, err) == (0, "")
    assert "LCG.A.ch:" in out
    [form] = server.asked
    assert (form["method"], form["args"]) == (["getCompressedDataIfNewer"], ['["0"]'])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"OK": false, "Message": "not authorised ( 1113 : )"}', "not authorised"),
        (b"<html>", "no Configuration Server answers there: 200 '<html>'"),
        (b'{"OK": true, "Value": {"data": "AAAA"}}', "no Configuration Server"),
        (b'{"OK": true, "Value": [1]}', "no Configuration Server"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(
    run: Run, server: ConfigurationServer, arguments: list[object], answer: bytes, said: str
) -> None:
    server.answer = answer
    status, _, err = run(*arguments)
    assert (status, err.count("\n")) == (1, 1)
    assert said in err


def test_a_packed_text_that_fills_the_memory_is_refused(
    run: Run, server: ConfigurationServer, arguments: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dirac_server, "MOST_BYTES", 1000)
    server.publish("#" * 10_000)
    assert "more than 1,000 bytes" in run(*arguments)[2]


def test_without_the_authority_of_the_server_nothing_is_believed(
    run: Run, server: ConfigurationServer, arguments: list[object]
) -> None:
    server.publish(CFG)
    status, _, err = run(*arguments[:-2])
    assert status == 1
    assert "certificate verify failed" in err
    assert run("config", "import", "dirac", "x.cfg", "--certificate", "y.pem")[0] == 2
