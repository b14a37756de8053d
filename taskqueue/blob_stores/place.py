"""Where an installation keeps its archives, as a setting names it: a directory, or a bucket of S3."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

_SCHEME = "s3://"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OPTIONS = ("endpoint", "region")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """A bucket, and a prefix in it; without endpoint and region those of the client's own configuration."""

    bucket: str
    prefix: str = ""  #: without slashes around it
    endpoint: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.prefix}".rstrip("/") + (
            f" at {self.endpoint}" if self.endpoint else ""
        )


def parse_place(given: object) -> object:
    """An S3Place for `s3://bucket/prefix?endpoint=URL&region=NAME`, else a path.

    Raises:
        ValueError: Such a URL is wrong, or begins with another scheme: no directory is called so.
    """
    if not isinstance(given, str):
        return given
    if given.startswith(_SCHEME):
        return _parse_url(given)
    if _URL.match(given):
        raise ValueError("should be a directory, or s3://bucket/prefix")
    return Path(given)


def _parse_url(text: str) -> S3Place:
    url = urlsplit(text)
    if "@" in url.netloc:
        raise ValueError("has credentials: they belong into the environment or a profile (AWS_PROFILE)")
    if not url.netloc:
        raise ValueError("names no bucket; it should be s3://bucket/prefix")
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise ValueError(f"{unknown[0]}: there is no such part, there are {' and '.join(_OPTIONS)}")
    endpoint = options.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("https://", "http://")):
        raise ValueError("the endpoint should be a URL such as https://s3.example.org")
    return S3Place(
        bucket=url.netloc, prefix=url.path.strip("/"), endpoint=endpoint, region=options.get("region")
    )
