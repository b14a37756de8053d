"""THE evaluator: whether a resource has what a job asks, with every reason why not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from requirements import evaluation
from requirements.canonical import Requirements
from requirements.declarations import Declaration, Declarations, Kind, MatchRule
from requirements.expression import Expression
from requirements.record import Record
from requirements.rules import ReasonKind, mismatch
from requirements.values import Value, kept, lookup, normal, shown

__all__ = ["Reason", "ReasonKind", "eligible", "failing", "parameters", "parts", "without"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One requirement that fails at a resource."""

    requirement: str  #: its name, or `Requirements` for an expression
    wanted: str  #: what is asked, for a person
    has: str | None  #: what the resource has; None: nothing of that name
    kind: ReasonKind

    def __str__(self) -> str:
        has = "nothing of that name" if self.has is None else self.has
        return f"{self.requirement}: wanted {self.wanted}, has {has} ({self.kind})"


def failing(
    requirements: Requirements, resource: Mapping[str, Value], declarations: Declarations
) -> tuple[Reason, ...]:
    """Every requirement that the resource does not fulfil; empty means that it is eligible.

    Args:
        requirements: What a job asks.
        resource: The effective parameters of a queue for the job's VO; names are looked up without case.
        declarations: What the names mean now; an expression takes no notice of them.
    """
    if isinstance(requirements, Record):
        return tuple(_record_reasons(requirements, resource, declarations))
    return tuple(
        Reason(requirement="Requirements", wanted=part.text, has=part.has, kind=part.kind)
        for part in evaluation.failing_parts(requirements.text, resource)
    )


def eligible(requirements: Requirements, resource: Mapping[str, Value], declarations: Declarations) -> bool:
    """Whether the resource fulfils all requirements."""
    if isinstance(requirements, Record):
        return next(_record_reasons(requirements, resource, declarations), None) is None
    return evaluation.is_true(requirements.text, resource)


def parts(requirements: Requirements) -> tuple[Requirements, ...]:
    """What can be asked one by one: a resource that fulfils each of them fulfils the whole, and only then."""
    if isinstance(requirements, Record):
        return tuple(Record(values=(entry,)) for entry in requirements.values)
    return (requirements,)


def without(requirements: Requirements, wanted: str) -> Requirements | None:
    """An expression without the operand of its outermost `&&` that was written so; None: nothing is left."""
    if isinstance(requirements, Record):
        return requirements
    left = [f"({text})" for text in evaluation.operands(requirements.text) if text != wanted]
    return Expression(text=" && ".join(left)) if left else None


def parameters(requirements: Requirements, declarations: Declarations) -> tuple[str, ...]:
    """The names of a resource that the requirements look at; nothing else about it matters to them."""
    if isinstance(requirements, Record):
        return tuple(_compared(name, declarations.get(name)) for name, _ in requirements.values)
    return evaluation.names(requirements.text)


def _record_reasons(
    record: Record, resource: Mapping[str, Value], declarations: Declarations
) -> Iterator[Reason]:
    for name, wanted in record.values:
        declaration = declarations.get(name)
        has = lookup(resource, _compared(name, declaration))
        kind = mismatch(wanted, has, declaration)
        if kind is not None:
            yield Reason(
                requirement=name,
                wanted=_asked(wanted, declaration),
                has=None if has is None else shown(has),
                kind=kind,
            )


def _compared(name: str, declaration: Declaration | None) -> str:
    """The parameter of a resource that a name is compared with."""
    return (declaration.resource if declaration else None) or name


def _asked(wanted: Value, declaration: Declaration | None) -> str:
    """What is asked, in words that say by which rule."""
    declared = declaration or Declaration(name="")
    plain = normal(wanted)
    if isinstance(plain, tuple):
        which = "all of " if declared.match is MatchRule.ALL else "one of "
        return which + shown(kept(wanted))
    text = shown(wanted) + (f" {declared.unit}" if declared.unit else "")
    is_number = not isinstance(plain, str | bool) or declared.kind is Kind.NUMBER
    return f"at least {text}" if is_number and declared.kind is not Kind.LIST else text
