"""Reading what a pilot presents.

Names in DIRAC's spelling, singular or plural, without regard to case; values one or a list. What has no
meaning here is kept and answered with a warning, never refused: a newer pilot works with an older server.
"""

from collections.abc import Mapping
from typing import Any

from cs_config import bounds
from matcher.pilot_words import LARGEST, PilotWords
from matcher.resource import Presented, Resource, Values
from requirements.errors import InvalidResource

_MANY = "multiprocessor"
_WHOLE = "wholenode"

#: What says where a pilot is.
_PLACE = ("site", "ce", "queue")


def read(raw: Mapping[str, Any]) -> Presented:
    """What a request for work says.

    Raises:
        InvalidResource: With every problem of it: a number that is none, a keyword twice, no CPUTime.
    """
    said = PilotWords(raw)
    presented = Presented(
        resource=_resource(said),
        site=said.one("site"),
        ce=said.one("ce"),
        queue=said.one("queue"),
        several=tuple(said.spelling(each) for each in _PLACE if len(said.values(each) or ()) > 1),
        pools=said.pools(),
        stamp=said.one("stamp") or said.one("reference") or None,
        job_id=said.whole_number("job_id", 1, LARGEST),
        node_facts=said.node_facts(),
        attributes=said.unknown,
        warnings=tuple(said.warnings),
    )
    if said.problems:
        raise InvalidResource(said.problems)
    return presented


def _resource(said: PilotWords) -> Resource:
    processors = said.whole_number("processors", 1, bounds.PROCESSORS)
    whole_node = said.flag("whole_node")
    required = said.values("required_tags") or frozenset()
    offered: Values = None  # any tag
    if not said.says_any("tags"):
        named = said.values("tags") or frozenset()
        offered = named | _tags_of(processors or 0, whole_node=whole_node)
    if (offered is None and required) or (offered is not None and not required <= offered):
        said.complain(
            said.spelling("required_tags"),
            f"{sorted(required)} are required of jobs but not all offered under Tag",
        )
    return Resource(
        cpu_time=said.cpu_time(),
        sites=said.values("site"),
        grid_ces=said.values("ce"),
        platforms=said.values("platforms"),
        job_types=said.values("job_types"),
        owners=said.values("owners"),
        owner_groups=said.values("owner_groups"),
        vos=said.values("vo"),
        tags=offered,
        required_tags=required,
        banned_sites=said.values("banned_sites") or frozenset(),
        banned_grid_ces=said.values("banned_grid_ces") or frozenset(),
        banned_platforms=said.values("banned_platforms") or frozenset(),
        banned_job_types=said.values("banned_job_types") or frozenset(),
        banned_tags=said.values("banned_tags") or frozenset(),
        max_ram=said.whole_number("max_ram", 0, LARGEST),
        processors=processors,
        gpus=said.whole_number("gpus", 0, LARGEST) or 0,
        whole_node=whole_node,
    )


def _tags_of(processors: int, *, whole_node: bool) -> frozenset[str]:
    """The tags by which jobs ask for cores.

    Source: DIRAC: n cores offer `1Processors` … `nProcessors`, and `MultiProcessor` if there are several.
    """
    tags = {f"{number}processors" for number in range(1, processors + 1)}
    if processors > 1:
        tags.add(_MANY)
    if whole_node:
        tags |= {_WHOLE, _MANY}
    return frozenset(tags)
