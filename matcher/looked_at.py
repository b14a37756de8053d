"""The parameters of a queue that a part of a demand looks at."""

from collections.abc import Iterator

from cs_config import admission, glue
from matcher.parts import Application, Condition, Part, Requirement
from requirements import evaluator
from requirements.declarations import Declarations
from requirements.values import fold

#: The parameters, folded, that a field of a pilot's offer is made of; see `offers`.
_READ = {
    "cpu_time": ("cputime", "maxwallclocktime", "cpunormalizationfactor"),
    "max_ram": ("maxram",),
    "processors": ("numberofprocessors",),
    "gpus": ("gpus",),
    "platforms": ("platform",),
    "tags": ("tag",),
    "required_tags": ("requiredtag",),
    "whole_node": ("wholenode",),
}
_GLUE = {fold(each.name): fold(each.parameter) for each in glue.TABLE}


def parameters(part: Part, declarations: Declarations) -> Iterator[str]:
    """Their folded names, with those that GLUE names are made of."""
    if isinstance(part, Requirement):
        for name in map(fold, evaluator.parameters(part.asked, declarations)):
            yield name
            if name in _GLUE:
                yield _GLUE[name]
    elif isinstance(part, Condition):
        for looked_at in part.kind.looks:
            yield from _READ.get(looked_at, ())


def of_failure(part: Part, requirement: str, declarations: Declarations) -> Iterator[str]:
    """The same of a part that fails; of what queues ask of jobs, the condition that is not true."""
    if isinstance(part, Application):
        yield admission.REQUIREMENTS if requirement == admission.OF_QUEUE else fold(requirement)
    else:
        yield from parameters(part, declarations)
