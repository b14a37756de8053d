"""The container of a payload that names an image: how it starts, and whose fault it is if it does not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotage.fabric.pilot.errors import HostTrouble
from pilotage.fabric.pilot.node import containers
from pilotage.fabric.pilot.payload import isolation, payload
from pilotage.fabric.pilot.payload.isolation import NONE, Isolation
from pilotage.fabric.pilot.payload.work_area import WorkArea

#: Whose fault it is that a container was not started.
OF_JOB, OF_HOST, UNKNOWN = "the job names it", "this host", "unknown"
_CVMFS = Path("/cvmfs")


class UnfitImage(Exception):
    """No host can start the image; the message is the reason."""


@dataclass(frozen=True)
class StartFailure:
    """Why a container did not start."""

    reason: str
    fault: str


def choose_container(
    image: str, area: WorkArea, site: Isolation, *, gpus: Sequence[str], own: Mapping[str, str]
) -> Isolation:
    """The container of a payload with an image, in place of the isolation that others get.

    Raises:
        UnfitImage: The job is to blame.
        HostTrouble: A repository is not mounted, or no container can be started here.
    """
    repository = containers.find_repository(image)
    if repository and not containers.is_mounted(repository, own):
        raise HostTrouble(f"Image {image}: /cvmfs/{repository} is not mounted")
    located = image if "://" in image else str(_find_file(image, area, site))
    return isolation.contain(site, located, options=tuple(_list_options(gpus)), own=own)


def _list_options(gpus: Sequence[str]) -> Iterator[str]:
    """Further options: the drivers of its GPUs, and the software of experiments."""
    if gpus:
        yield "--nv"
    if _CVMFS.is_dir():
        yield from ("--bind", str(_CVMFS))


def _find_file(image: str, area: WorkArea, site: Isolation) -> Path:
    """The image on this host; a directory would show the payload all that is in it.

    It may be anywhere only where payloads are not kept from the files of this host.
    """
    if ".." in Path(image).parts or image.startswith("-"):
        raise UnfitImage(f"{image}: is no path of an image")
    file = area.home / image  # an absolute path stays as it is
    if not file.exists():
        place = "on this host" if Path(image).is_absolute() else "in the input sandbox"
        raise UnfitImage(f"{image}: is not {place}")
    real = Path(os.path.realpath(file))
    below = (_CVMFS, area.home.resolve())
    if real.is_dir() and site.kind != NONE and not any(top in real.parents for top in below):
        raise UnfitImage(f"{image}: is a directory, which is allowed below {_CVMFS} and in the sandbox")
    return file


#: What apptainer and singularity report where the host is to blame, and where the image is.
_OF_HOST = re.compile(
    r"user namespace|no space left|disk quota|read-only file system|cannot allocate memory"
    r"|transport endpoint|input/output error|too many open files|resource temporarily unavailable"
    r"|operation not permitted|squashfuse|fuse|setuid|while mounting|mount.*(?:failed|permission denied)",
    re.IGNORECASE,
)
_OF_IMAGE = re.compile(
    r"no such file or directory|image format not recogni[sz]ed|could not open image|manifest.unknown"
    r"|unauthorized|access.*denied|not found|invalid reference|exec format error|not a valid"
    r"|does not exist|no such image|no image satisf",
    re.IGNORECASE,
)


def explain_start(image: str, error_file: str, area: WorkArea) -> StartFailure | None:
    """Why the container did not start, by what its program reported; None: it did.

    Without an image of the job's, the container is that of the site.
    """
    if isolation.was_reached(area):
        return None
    lines = [line for line in payload.tail_of_path(area.home / error_file).splitlines() if line.strip()]
    fatal = [line for line in lines if "FATAL" in line]
    text = (fatal or lines or ["its program reported nothing"])[-1].strip()
    if not image:
        return StartFailure(f"the container of the site was not started: {text}", OF_HOST)
    return StartFailure(f"Image {image}: {text}", _find_fault(text))


def _find_fault(text: str) -> str:
    if _OF_HOST.search(text):
        return OF_HOST
    return OF_JOB if _OF_IMAGE.search(text) else UNKNOWN
