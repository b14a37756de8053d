"""How many cores a job wants, as numbers and as the tags by which DIRAC's pilots offer them."""

import re
from dataclasses import dataclass

from optimizers.description import JobDescription
from requirements.values import fold

_MANY = "MultiProcessor"
_WHOLE = "WholeNode"
_NUMBER = re.compile(r"([1-9][0-9]{0,3})processors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """Cores of one job."""

    minimum: int
    maximum: int | None  #: None: as many as there are
    whole_node: bool
    tags: frozenset[str]


def wanted(description: JobDescription) -> Processors:
    """The cores that a description asks for.

    Source: DIRAC: n cores are the tags `nProcessors` and `MultiProcessor`, a range with more than one
    is `MultiProcessor`, a whole node `WholeNode` and `MultiProcessor`. Who writes only the tags means the
    same.
    """
    low, high = _range(description)
    tags = {_WHOLE, _MANY} if description.whole_node else set()
    if _in_numbers(description) or description.whole_node:
        if high is None or high > 1:
            tags.add(_MANY)
        if low == high and low > 1:
            tags.add(f"{low}Processors")
    return Processors(minimum=low, maximum=high, whole_node=_whole_node(description), tags=frozenset(tags))


def _range(description: JobDescription) -> tuple[int, int | None]:
    if description.processors is not None:
        return description.processors, description.processors
    if _in_numbers(description):
        return description.min_processors or 1, description.max_processors
    if named := [int(found[1]) for tag in description.tags if (found := _NUMBER.fullmatch(fold(tag)))]:
        return max(named), max(named)
    return 1, None if _whole_node(description) else 1


def _in_numbers(description: JobDescription) -> bool:
    asked = description.processors, description.min_processors, description.max_processors
    return asked != (None, None, None)


def _whole_node(description: JobDescription) -> bool:
    return description.whole_node or fold(_WHOLE) in map(fold, description.tags)
