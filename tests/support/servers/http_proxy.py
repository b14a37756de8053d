"""An HTTP proxy as sites have it, of the standard library: tunnels for TLS, forwards what is plain."""

import http.client
import select
import socket
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit


class ForwardProxy:
    """Used with `with`; asked for a host by any name, it goes to 127.0.0.1."""

    def __init__(self, authorization: str | None = None) -> None:
        self.asked: list[str] = []  #: method and target of each request
        self.authorization = authorization  #: what it wants to see; None: nothing
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: ForwardProxy

    def log_message(self, *_: object) -> None:
        pass

    def _is_allowed(self) -> bool:
        self.proxy.asked.append(f"{self.command} {self.path}")
        wanted = self.proxy.authorization
        if wanted is None or self.headers.get("Proxy-Authorization") == wanted:
            return True
        self.send_error(407)
        return False

    def do_CONNECT(self) -> None:
        if not self._is_allowed():
            return
        port = int(self.path.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as beyond:
            self.send_response(200, "Connection established")
            self.end_headers()
            ends = {self.connection: beyond, beyond: self.connection}
            while ready := select.select(list(ends), [], [], 300)[0]:
                for end in ready:
                    if not (data := end.recv(65536)):
                        return
                    ends[end].sendall(data)

    def _forward(self) -> None:
        if not self._is_allowed():
            return
        target = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kept = {name: value for name, value in self.headers.items() if not name.startswith("Proxy-")}
        with closing(http.client.HTTPConnection("127.0.0.1", target.port or 80, timeout=300)) as connection:
            connection.request(self.command, target.path, body, kept)
            answer = connection.getresponse()
            data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _forward  # noqa: N815 - http.server wants these names
