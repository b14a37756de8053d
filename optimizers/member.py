"""One job of a submission."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cs_config import keywords
from optimizers import description as descriptions
from optimizers.description import JobDescription
from taskqueue import placeholders


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A job that may share its description with others, but for some values."""

    description: JobDescription
    own: Mapping[str, Any] = field(default_factory=dict)  #: values that it has instead, by attribute
    parameters: placeholders.Parameters | None  #: for the placeholders of the shared body; None: it has none

    @property
    def whole(self) -> JobDescription:
        """The description with its own values."""
        return replace(self.description, **self.own) if self.own else self.description

    @property
    def arguments(self) -> str:
        """Its own arguments, or those that it shares."""
        return str(self.own.get("arguments", self.description.arguments))

    @property
    def own_body(self) -> dict[str, object]:
        """Its own values as they stand in a stored description."""
        own = [(keywords.BY_ATTRIBUTE[attribute], value) for attribute, value in self.own.items()]
        return {keyword.name: descriptions.as_json(keyword, value) for keyword, value in own}
