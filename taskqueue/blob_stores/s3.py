"""Archives as objects of a bucket of S3: `PREFIX/sha256/DIGEST`.

An archive that fits into one part is put under its digest. A larger one is uploaded in parts below
`PREFIX/incoming` while it comes in, since its digest is known at its end, and then copied within the store.
So the bytes have their place before the transaction that inserts the row, which only looks whether they are
still there: retention may just have deleted the same archive of an earlier row.
"""

import io
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from typing import Any, BinaryIO, cast

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from taskqueue.blob_stores.place import S3Place
from taskqueue.blob_stores.store import BlobStore, MeasuredChunks, StagedBlob, check_digest, is_digest
from taskqueue.errors import BlobNotFound, StorageAway, StorageFull

#: Bytes of a part, the fewest that S3 takes; and most parts of an object.
PART = 5 << 20
_MOST_PARTS = 10_000
#: Bytes that one request copies within the store.
_COPIED = 256 << 20
#: Bytes of a download that are read at a time.
_READ = 64 << 10
#: What stores answer that have no space left, or a quota that is used up.
_FULL = frozenset({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "ServiceQuotaExceeded"})
#: Names below `incoming`.
_STAGED = re.compile("[0-9a-f]{32}")
_MISSING = frozenset({"NoSuchKey", "404"})
#: A request under the lock of a digest keeps a connection to the database: it ends within a minute.
_CONFIG = Config(
    connect_timeout=3,
    read_timeout=15,
    retries={"mode": "standard", "total_max_attempts": 3},
    max_pool_connections=160,  # uploads of both kinds, and downloads
    # Newer checksums are unknown to many stores; archives have their digest.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Errors of the client as StorageFull and StorageAway; texts of the store may have names of keys."""
    try:
        yield
    except ClientError as error:
        code = _code_of(error)
        if code in _FULL:
            raise StorageFull(f"no space left for archives: the object store answers {code}") from error
        raise StorageAway(
            f"archives cannot be stored or read now: the object store answers {code}"
        ) from error
    except BotoCoreError as error:
        raise StorageAway(f"archives cannot be stored or read now: {type(error).__name__}") from error


def _code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "an error"))


class S3Store(BlobStore):
    """Objects of a bucket; credentials are those that AWS's clients find (environment, profile, role)."""

    def __init__(self, place: S3Place) -> None:
        self._place = place
        prefix = f"{place.prefix}/" if place.prefix else ""
        self._prefix, self._stored, self._incoming = prefix, f"{prefix}sha256/", f"{prefix}incoming/"
        with _translate_errors():
            self._client: Any = botocore.session.get_session().create_client(
                "s3", region_name=place.region, endpoint_url=place.endpoint, config=_CONFIG
            )

    def check_space(self, *, part: float = 1.0) -> None:
        """A store refuses what it has no space for; nobody can tell before."""

    @_translate_errors()
    def stage(self, chunks: Iterable[bytes], *, limit: int, leave: float = 1.0) -> StagedBlob:  # noqa: ARG002 - as check_space
        """Receive an archive of at most `limit` bytes, in memory of two parts."""
        measured = MeasuredChunks(chunks, limit=limit)
        size = max(PART, -(-limit // _MOST_PARTS))
        parts = _split(measured, size)
        first = next(parts)
        if len(first) < size:
            self._send("put_object", Key=self._locate(measured.digest), Body=first)
        else:
            self._stage_parts(chain((first,), parts), measured)
        return StagedBlob(digest=measured.digest, size=measured.size)

    @_translate_errors()
    def store(self, staged: StagedBlob) -> None:
        """Check under the lock that the archive was not deleted since it was staged."""
        try:
            self._send("head_object", Key=self._locate(staged.digest))
        except ClientError as error:
            if _code_of(error) in _MISSING:
                raise StorageAway("the archive was deleted just now by retention: send it again") from error
            raise

    def discard(self, staged: StagedBlob) -> None:
        """Nothing: what has no row is deleted by its digest, under its lock."""

    @_translate_errors()
    def open(self, digest: str) -> BinaryIO:
        """Read an archive in order, or from any byte; BlobNotFound."""
        key = self._locate(digest)
        try:
            return io.BufferedReader(_ObjectReader(lambda at: self._fetch(key, at)), _READ)
        except ClientError as error:
            if _code_of(error) in _MISSING:
                raise BlobNotFound(digest) from error
            raise

    @_translate_errors()
    def delete(self, digest: str) -> None:
        """Delete an archive, if it exists."""
        self._send("delete_object", Key=self._locate(digest))

    def digests(self, *, before: datetime) -> Iterator[str]:
        """Digests of all archives stored before that time."""
        with _translate_errors():
            for key in self._list_objects(self._stored, before):
                if is_digest(digest := key.removeprefix(self._stored)):
                    yield digest

    @_translate_errors()
    def sweep(self, *, before: datetime) -> int:
        """Delete uploads that were interrupted before that time; how many."""
        left = [key for key in self._list_objects(self._incoming, before) if self._is_own(key)]
        for key in left:
            self._send("delete_object", Key=key)
        uploads = self._paginate("list_multipart_uploads", "Uploads", self._prefix)
        broken = [each for each in uploads if each["Initiated"] < before and self._is_own(each["Key"])]
        for each in broken:
            self._send("abort_multipart_upload", Key=each["Key"], UploadId=each["UploadId"])
        return len(left) + len(broken)

    def _is_own(self, key: str) -> bool:
        """Whether a key is one that this store makes: a bucket may have uploads of others."""
        kind, _, name = key.removeprefix(self._prefix).rpartition("/")
        return is_digest(name) if kind == "sha256" else kind == "incoming" and bool(_STAGED.fullmatch(name))

    def _stage_parts(self, parts: Iterable[bytes], measured: MeasuredChunks) -> None:
        aside = self._incoming + secrets.token_hex(16)
        try:
            self._assemble(aside, "upload_part", ({"Body": part} for part in parts if part))
            self._copy(aside, self._locate(measured.digest), measured.size)
        finally:
            with suppress(BotoCoreError, ClientError):  # then `sweep` does
                self._send("delete_object", Key=aside)

    def _copy(self, source: str, key: str, size: int) -> None:
        whole = {"Bucket": self._place.bucket, "Key": source}
        starts = range(0, size, _COPIED)
        spans = (f"bytes={start}-{min(start + _COPIED, size) - 1}" for start in starts)
        parts = ({"CopySource": whole, "CopySourceRange": span} for span in spans)
        self._assemble(key, "upload_part_copy", parts)

    def _assemble(self, key: str, operation: str, parts: Iterable[Mapping[str, object]]) -> None:
        """Make an object of parts, each the arguments of a request; nothing is left if one fails."""
        upload = {"Key": key, "UploadId": self._send("create_multipart_upload", Key=key)["UploadId"]}
        try:
            done = [
                {"PartNumber": number, "ETag": self._send_part(operation, {**upload, **part}, number)}
                for number, part in enumerate(parts, start=1)
            ]
            self._send("complete_multipart_upload", **upload, MultipartUpload={"Parts": done})
        except BaseException:
            with suppress(BotoCoreError, ClientError):  # then `sweep` does
                self._send("abort_multipart_upload", **upload)
            raise

    def _send_part(self, operation: str, arguments: Mapping[str, object], number: int) -> object:
        answer = self._send(operation, PartNumber=number, **arguments)
        return answer.get("CopyPartResult", answer)["ETag"]

    def _fetch(self, key: str, at: int) -> Mapping[str, Any]:
        """The answer with an object from this byte on."""
        span = {"Range": f"bytes={at}-"} if at else {}
        return cast("Mapping[str, Any]", self._send("get_object", Key=key, **span))

    def _list_objects(self, prefix: str, before: datetime) -> Iterator[str]:
        for each in self._paginate("list_objects_v2", "Contents", prefix):
            if each["LastModified"] < before:
                yield each["Key"]

    def _paginate(self, operation: str, kind: str, prefix: str) -> Iterator[Mapping[str, Any]]:
        pages = self._client.get_paginator(operation).paginate(Bucket=self._place.bucket, Prefix=prefix)
        for page in pages:
            yield from page.get(kind, ())

    def _locate(self, digest: str) -> str:
        return self._stored + check_digest(digest)

    def _send(self, operation: str, **arguments: object) -> Any:
        return getattr(self._client, operation)(Bucket=self._place.bucket, **arguments)


def _split(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in parts of this size; the last is smaller, perhaps empty."""
    part = bytearray()
    for chunk in chunks:
        part += chunk
        while len(part) >= size:
            with memoryview(part) as whole:
                first = bytes(whole[:size])
            del part[:size]
            yield first
    yield bytes(part)


class _ObjectReader(io.RawIOBase):
    """Reads an object; a connection that breaks is opened once more where it broke."""

    def __init__(self, fetch: Callable[[int], Mapping[str, Any]]) -> None:
        self._fetch = fetch
        self._at = 0
        answer = fetch(0)
        self._size: int = answer["ContentLength"]
        self._body: Any = answer["Body"]  #: None: not fetched from here yet

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go on from another byte, by a request of its own."""
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at != self._at:
            self._drop()
            self._at = at
        return at

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes; StorageAway."""
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        try:
            found = self._read(wanted)
        except (BotoCoreError, ClientError):
            self._drop()
            with _translate_errors():
                found = self._read(wanted)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def close(self) -> None:
        """End the download, also in its middle."""
        self._drop()
        super().close()

    def _read(self, wanted: int) -> bytes:
        if self._body is None:
            self._body = self._fetch(self._at)["Body"]
        return cast("bytes", self._body.read(wanted))

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
        self._body = None
