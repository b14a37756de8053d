"""Container images that jobs name, and the tags of nodes that can start them.

An image is a file or directory on the node (`/cvmfs/…`), one of a registry (`docker://…`), or a file of the
input sandbox.
"""

import re
from typing import Final

#: The tag of pilots whose node starts containers; pilots of releases before state no such tag.
CONTAINERS: Final = "hostfeat:apptainer"
#: Sources of images besides the node and the sandbox.
SCHEMES: Final = ("docker", "oras", "library", "https")
#: The tag with which a site allows images that its nodes fetch from elsewhere.
REMOTE_ALLOWED: Final = "image:remote"
#: What classes keep of an image that nodes fetch from elsewhere; no image is spelled so.
REMOTE: Final = "remote://"
#: What classes keep of an image that needs no repository of CVMFS.
ELSEWHERE: Final = "elsewhere"
_REPOSITORY: Final = re.compile(r"/cvmfs/([A-Za-z0-9][A-Za-z0-9_.-]*)(?:/|$)")


def find_source(image: str) -> str:
    """Where an image is, as far as it matters to matching: so jobs of many images share a class.

    The source of a source is itself; empty: there is no image.
    """
    if found := _REPOSITORY.match(image):
        return f"/cvmfs/{found[1]}"
    if "://" in image:
        return REMOTE
    return ELSEWHERE if image else ""


def list_tags(image: str) -> frozenset[str]:
    """The tags of nodes that can start an image; none: there is no image."""
    if not image:
        return frozenset()
    if "://" in image:
        return frozenset({CONTAINERS, REMOTE_ALLOWED})
    found = _REPOSITORY.match(image)
    return frozenset({CONTAINERS, *([f"cvmfs:{found[1]}"] if found else [])})


def find_fault(image: str) -> str | None:
    """Why a text cannot be an image; None: it can."""
    scheme, colon, rest = image.partition("://")
    if colon and (scheme not in SCHEMES or not rest):
        return f"is no image, which is a path, a file of the input sandbox, or {'://…, '.join(SCHEMES)}://…"
    if not colon and (image.startswith("-") or ".." in image.split("/")):
        return "is no path of an image: it begins with - or has a part .."
    if re.search(r"[\s\x00-\x1f]", image):
        return "has blanks, which no image has"
    return None
