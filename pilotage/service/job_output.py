"""The output archive of a job's latest attempt, as it is delivered, and what is in it."""

from typing import BinaryIO

from fastapi.responses import StreamingResponse

from pilotage.service import archive_listing, archives, job_scope
from pilotage.service.archive_listing import Listing
from pilotage.service.callers import Caller
from pilotage.service.parts import Parts
from taskqueue import attempts, database, jobs
from taskqueue.errors import BlobNotFound


def send(parts: Parts, caller: Caller, job_id: int) -> StreamingResponse:
    """The archive.

    Raises:
        BlobNotFound: There is none.
        JobNotFound: There is no such job that the caller may see.
    """
    with database.reading(parts.engine) as conn:
        job = job_scope.require(caller, jobs.get(conn, job_id))
        attempt = attempts.latest(conn, job_id)
        digest = attempt.output if attempt else None
        return archives.answer(parts.blobs, conn, digest, vo=job.vo, name=f"output-{job_id}.tar")


def listing(parts: Parts, caller: Caller, job_id: int) -> Listing:
    """What is in the archive.

    Raises:
        BlobNotFound: There is none.
        JobNotFound: There is no such job that the caller may see.
    """
    with _opened(parts, caller, job_id) as archive:
        return archive_listing.read(archive)


def _opened(parts: Parts, caller: Caller, job_id: int) -> BinaryIO:
    with database.reading(parts.engine) as conn:
        job_scope.require(caller, jobs.get(conn, job_id))
        attempt = attempts.latest(conn, job_id)
    if attempt is None or attempt.output is None:
        raise BlobNotFound(f"output-{job_id}.tar")
    return parts.blobs.open(attempt.output)
