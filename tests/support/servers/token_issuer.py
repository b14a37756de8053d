"""An issuer of tokens in the profile of WLCG: https on 127.0.0.1, in a thread of the tests."""

import json
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import httpx
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

_SCOPES = "compute.read compute.create compute.cancel compute.modify"


class TokenIssuer:
    """Tells its keys to whoever asks, and signs tokens."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}"
        self._server.documents = {
            "/.well-known/openid-configuration": {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/jwks",
                "token_endpoint": f"{self.url}/token",
            },
        }
        self._server.asked = []
        self._server.behind = None
        self.rotate("tests")
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def asked(self) -> list[str]:
        """The paths that were asked for, in order."""
        return self._server.asked

    def pass_on(self, url: str, authorities: Path) -> None:
        """Pass PATCH requests on to this URL, as a balancer in front of both does."""
        self._server.behind = (url, ssl.create_default_context(cafile=str(authorities)))

    def rotate(self, key_id: str | None) -> None:
        """Sign with another key from now on; the one before is withdrawn."""
        named: dict[str, Any] = {} if key_id is None else {"kid": key_id}
        parameters: Any = {**named, "alg": "RS256", "use": "sig"}
        self._key = RSAKey.generate_key(2048, parameters, auto_kid=False)
        self._header = {"alg": "RS256", "typ": "JWT", **named}
        self._server.documents["/jwks"] = KeySet([self._key]).as_dict(private=False)

    @contextmanager
    def publishing(self, keys: object) -> Iterator[None]:
        """Publish this instead of its keys."""
        before = self._server.documents["/jwks"]
        self._server.documents["/jwks"] = keys
        try:
            yield
        finally:
            self._server.documents["/jwks"] = before

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def token(self, subject: str, audience: str, **changed: object) -> str:
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": subject,
            "aud": audience,
            "iat": now,
            "nbf": now - 60,
            "exp": now + 3600,
            "jti": uuid.uuid4().hex,
            "wlcg.ver": "1.0",
            "scope": _SCOPES,
            **changed,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(self._header, claims, self._key)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    documents: dict[str, object]
    asked: list[str]
    behind: tuple[str, ssl.SSLContext] | None


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.asked.append(urlparse(self.path).path)
        # Some clients send the whole address where the path belongs.
        found = self.server.documents.get(urlparse(self.path).path)
        self._answer(200 if found else 404, json.dumps(found or {}).encode())

    def do_PATCH(self) -> None:
        assert self.server.behind is not None
        url, context = self.server.behind
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name: self.headers[name] for name in ("Authorization", "Content-Type")}
        with httpx.Client(verify=context, timeout=300) as client:
            answer = client.patch(url + self.path, content=body, headers=headers)
        self._answer(answer.status_code, answer.content)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""
