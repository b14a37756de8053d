"""A stand-in of DIRAC's ProxyManager: it signs proxies with the certificates of some users."""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from examples.servers.certificates import sign_proxy
from tests.support.servers.http_servers import answering

#: Days that the proxies last; bits of their keys.
_DAYS, _BITS = 7, 2048


@contextmanager
def proxy_manager(
    users: Mapping[str, tuple[Path, Path]], host: tuple[Path, Path]
) -> Iterator[tuple[str, list[Any]]]:
    """The URL of a ProxyManager that has the certificates and keys of users, by DN; and the calls of it."""
    calls: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            method, arguments = form["method"][0], json.loads(form["args"][0])
            calls.append((method, arguments[:2]))
            value: object = [] if method == "getRegisteredUsers" else _BITS
            if method == "getProxy":
                owner, group, request = arguments[:3]
                key = x509.load_pem_x509_csr(request.encode()).public_key()
                assert isinstance(key, rsa.RSAPublicKey)
                chain = sign_proxy(*users[owner], key, group=group, limited=True, days=_DAYS)
                value = b"".join(chain).decode()
            body = json.dumps({"OK": True, "Value": value}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*host)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with answering(server):
        yield f"https://localhost:{server.server_address[1]}/Framework/ProxyManager", calls
