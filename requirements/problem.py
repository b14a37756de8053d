"""One thing that is wrong with an input: where, what was seen, what would be right."""

from dataclasses import asdict, dataclass
from typing import Final

#: Problems of one input that are told; input that is full of them would make an answer as large.
MOST_PROBLEMS: Final = 50
#: Names of one input for which the one that was probably meant is looked for.
MOST_HINTS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, told so that its author can mend it."""

    path: (
        str  #: where in the structure, such as `Resources/Sites/LCG.CERN.ch/MaxRamm` or `Requirements/Memory`
    )
    message: str  #: what is wrong, with what was seen and what is allowed
    suggestion: str | None = None  #: the name that was probably meant
    file: str | None = None  #: the file or input it stands in
    line: int | None = None  #: line there, from 1
    column: int | None = None  #: column there, from 1
    excerpt: str | None = None  #: the line itself, for a person to look at

    def __str__(self) -> str:
        meant = f", did you mean {self.suggestion}?" if self.suggestion else ""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        where = f" ({place})" if place else ""
        shown = f"\n    {self.excerpt.strip()}" if self.excerpt else ""
        return f"{self.path}: {self.message}{meant}{where}{shown}"

    def as_json(self) -> dict[str, object]:
        """What is known of it, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}
