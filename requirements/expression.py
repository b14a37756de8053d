"""Requirements as one ClassAd expression over the resource."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A ClassAd expression that must be true of the resource, `other.` being the resource."""

    text: str  #: as the user spelled it


def parse_expression(text: str, path: str = "Requirements") -> Expression:  # noqa: ARG001
    """The expression that a job description states."""
    return Expression(text=text)
