"""Fields of files of other systems, which record what an importer reads: it names the others in its notes."""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class ForeignFields(dict[str, Value], Generic[Value]):
    """Fields by name. Reading one by its name records it; a walk over all of them does not."""

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self._read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, else the default."""
        self._read.add(name)
        return super().get(name, default)

    def list_unread(self) -> Iterator[tuple[str, Value]]:
        """The fields that were not read until now, with their values."""
        return ((name, value) for name, value in self.items() if name not in self._read)
