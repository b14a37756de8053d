"""What a job would wish of a queue that fails one thing it asks."""

from dataclasses import dataclass

from matcher import rules
from matcher.parts import Application, Part, Requirement
from matcher.queue_views import QueueView
from matcher.survey import Survey
from requirements import evaluator
from requirements.record import Record
from requirements.values import Scalar, as_number, fold, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A wish; those of equal text are one, and a larger number serves all that wish a smaller one."""

    text: str  #: where there is a number, with `{number}` for it
    number: float | None = None


def wish(part: Part, wanted: str, here: Survey, queue: int) -> Wish | None:
    """What the queue would have to be; None: it is no matter of the queue.

    Args:
        part: What it fails.
        wanted: What is asked, for a person.
        here: Queues.
        queue: Which of them fails it.
    """
    if isinstance(part, Requirement):
        return _of_requirements(part, wanted, here, here.queues[queue])
    if isinstance(part, Application):
        return Wish(text=_literal(f"do without `{wanted}`"))
    asked = part.isolated
    number = {
        "CPUTime": ("offer CPUTime {number} s", asked.cpu_time),
        "MinRAM": ("offer MaxRAM {number} MB", rules.ram_needed(asked)),
        "NumberOfProcessors": ("offer NumberOfProcessors {number}", max(2, asked.processors_min)),
        "GPUs": ("offer GPUs {number}", asked.gpus),
    }.get(part.kind.requirement)
    if number is not None:
        return Wish(text=number[0], number=number[1])
    text = {
        "Platform": f"offer the Platform {wanted}",
        "JobType": f"have a job manager for the JobType {', '.join(sorted(asked.job_types))}",
        "Tags": f"offer the Tag {wanted}",
        "RequiredTag": "require no Tag (RequiredTag)",
        "WholeNode": "offer WholeNode: true",
    }.get(part.kind.requirement)
    return None if text is None else Wish(text=_literal(text))


def _of_requirements(part: Requirement, wanted: str, here: Survey, queue: QueueView) -> Wish:
    if not isinstance(part.asked, Record):
        return Wish(text=_literal(f"be such that `{wanted}`"))
    [(_, value)] = part.asked.values
    [parameter] = evaluator.parameters(part.asked, here.declarations)
    if parameter in queue.nodes:
        return Wish(text=_literal(f"have nodes with {parameter} {shown(value)}"))
    number = None if isinstance(value, tuple) else _number(value)
    has = next((each for other, each in queue.values.items() if fold(other) == fold(parameter)), None)
    if number is not None and not isinstance(has, tuple):
        return Wish(text=_literal(f"offer {parameter} ") + "{number}", number=number)
    return Wish(text=_literal(f"offer {parameter} {shown(value)}"))


def _number(value: Scalar) -> float | None:
    number = as_number(value)
    return None if isinstance(number, str | bool) else number


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
