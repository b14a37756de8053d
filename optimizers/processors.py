"""How many cores a job wants, as numbers and as the tags by which DIRAC's pilots offer them."""

from dataclasses import dataclass

from optimizers.description import JobDescription

_MANY = "MultiProcessor"
_WHOLE = "WholeNode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """Cores of one job."""

    minimum: int
    maximum: int | None  #: None: as many as there are
    tags: frozenset[str]


def wanted(description: JobDescription) -> Processors:
    """The cores that a description asks for.

    Source: DIRAC: n cores are the tags `nProcessors` and `MultiProcessor`, a range with more than one
    is `MultiProcessor`, a whole node `WholeNode` and `MultiProcessor`.
    """
    low, high = _range(description)
    tags = {_WHOLE, _MANY} if description.whole_node else set()
    if high is None or high > 1:
        tags.add(_MANY)
    if low == high and low > 1:
        tags.add(f"{low}Processors")
    return Processors(minimum=low, maximum=high, tags=frozenset(tags))


def _range(description: JobDescription) -> tuple[int, int | None]:
    if description.processors is not None:
        return description.processors, description.processors
    low, high = description.min_processors, description.max_processors
    if low is None and high is None:
        return 1, None if description.whole_node else 1
    return low or 1, high
