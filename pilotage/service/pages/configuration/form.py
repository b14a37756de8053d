"""The form of a draft: what its fields say."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from fastapi import Depends, Form

from pilotage.service.configuring.drafts import Draft, Row

#: The ways to write: single paths, or the text of a section.
VALUES: Final = "values"
TEXT: Final = "text"
REMOVE: Final = "remove"

_Number = Annotated[int, Form(ge=0, le=2**31 - 1)]
_Texts = Annotated[list[str], Form()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The form as somebody filled it in."""

    section: str  #: path of the section that the page shows
    draft: Draft
    message: str = ""
    guard: str = ""  #: conditions with commas between them

    @property
    def guards(self) -> list[str]:
        """The conditions one by one."""
        return [each for part in self.guard.split(",") if (each := part.strip())]

    @property
    def way(self) -> str:
        """How it is written."""
        return VALUES if self.draft.text is None else TEXT

    def with_draft(self, draft: Draft) -> "Filled":
        """The same with another draft."""
        return replace(self, draft=draft)


def names_of(path: str) -> tuple[str, ...]:
    """The names of a path from the top."""
    return tuple(name for name in path.split("/") if name)


def _filled(
    version: _Number,
    *,
    section: Annotated[str, Form(max_length=2000)] = "",
    way: Annotated[str, Form(pattern=f"^({VALUES}|{TEXT})$")] = VALUES,
    path: _Texts = [],  # noqa: B006  (the framework copies it)
    value: _Texts = [],  # noqa: B006
    action: _Texts = [],  # noqa: B006
    text: Annotated[str, Form()] = "",
    message: Annotated[str, Form(max_length=2000)] = "",
    guard: Annotated[str, Form(max_length=2000)] = "",
) -> Filled:
    rows = () if way == TEXT else tuple(_rows(path, value, action))
    written = text.replace("\r\n", "\n") if way == TEXT else None
    draft = Draft(version=version, names=names_of(section) if way == TEXT else (), rows=rows, text=written)
    return Filled(section=section, draft=draft, message=message, guard=guard)


def _rows(paths: Sequence[str], values: Sequence[str], actions: Sequence[str]) -> list[Row]:
    """The rows with a path; browsers send every field of each row, in order."""
    return [
        Row(path=path.strip(), value=value.strip(), is_removed=action == REMOVE)
        for path, value, action in zip(paths, values, actions, strict=False)
        if path.strip()
    ]


#: What the handlers of the form ask for.
FilledOf = Annotated[Filled, Depends(_filled)]
