"""A connection to the HTTP interface: what is shown, what is trusted, and what a refusal says."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from pilotage.fabric.api_errors import ApiError, ServiceAway
from pilotage.fabric.pilot import authorities as trust

Json = dict[str, Any]
#: Bytes of an archive that are in memory at a time.
CHUNK: Final = 1 << 20
_API: Final = "/api/v1"
#: By these a service refuses whoever asks.
_ABOUT_THE_TOKEN: Final = frozenset({401, 403})


class ApiConnection:
    """Calls one service with one token; to be closed.

    Raises `ApiError` when the service refuses and `ServiceAway` when nothing answers.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str],
        *,
        whose: str = "",
        timeout: float = 30.0,
        authorities: Path | None = None,
    ) -> None:
        """Make it.

        Args:
            url: Of the service.
            token: What is shown, or tells what is shown this time.
            whose: Where the token comes from; told if it is refused.
            timeout: Seconds until a service that does not answer is away.
            authorities: CA certificates that it is believed by, as pilots have them; None: the system's.

        Raises:
            ValueError: There are no such certificates.
        """
        self.url = url.rstrip("/")
        self._token = token
        self._whose = whose
        self._http = httpx.Client(
            base_url=self.url,
            auth=self._show,
            timeout=timeout,
            verify=trust.context(authorities) if url.startswith("https:") else True,
            trust_env=False,  # a proxy of the environment must not see the token
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether the service answers and can do its work."""
        try:
            return self._http.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def _page(self, path: str, filters: Mapping[str, str], *, limit: int, after: object) -> Json:
        cursor = {} if after is None else {"after": str(after)}
        return self._call("GET", path, params={**filters, "limit": str(limit), **cursor})

    def _show(self, request: httpx.Request) -> httpx.Request:
        token = self._token if isinstance(self._token, str) else self._token()
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    def _call(self, method: str, path: str, **request: Any) -> Json:
        answer: Json = self._request(method, path, **request).json()
        return answer

    def _request(self, method: str, path: str, **request: Any) -> httpx.Response:
        with self._away_if_silent():
            response = self._http.request(method, f"{_API}{path}", **request)
        if not response.is_success:
            raise _refusal(response, self._whose)
        return response

    def _stream(self, path: str) -> Iterator[bytes]:
        """What is at a path, a part at a time."""
        with self._away_if_silent(), self._http.stream("GET", f"{_API}{path}") as response:
            if not response.is_success:
                response.read()
                raise _refusal(response, self._whose)
            yield from response.iter_bytes(CHUNK)

    @contextmanager
    def _away_if_silent(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException:
            raise ServiceAway(f"{self.url} does not answer in time") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ServiceAway(f"{self.url} cannot be reached: {error}") from None


def _refusal(response: httpx.Response, whose: str) -> ApiError:
    try:
        error = response.json()["error"]
        message, code, details = str(error["message"]), str(error["code"]), dict(error.get("details") or {})
    except (ValueError, KeyError, TypeError):
        message, code, details = f"the service answers {response.status_code}", "error", {}
    if whose and response.status_code in _ABOUT_THE_TOKEN:
        message = f"{whose}: {message}"
    wait = response.headers.get("Retry-After", "")
    retry_after = float(wait) if wait.isdecimal() else None
    return ApiError(message, status=response.status_code, code=code, details=details, retry_after=retry_after)
