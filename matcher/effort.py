"""How much work an explanation may still be."""

from dataclasses import dataclass

#: Characters of expressions that are read anew for one explanation: reading is what takes long.
_CHARACTERS = 40_000
#: What looking for one better name or value comes to.
SEARCH = 400


@dataclass(slots=True)
class Effort:
    """A budget of work, in characters of expressions that are read; it is counted, not timed."""

    left: int = _CHARACTERS

    @property
    def over(self) -> bool:
        """Whether something was left out, or will be."""
        return self.left < 0

    def spend(self, characters: int) -> bool:
        """Take some of it; whether there was that much."""
        self.left -= characters
        return not self.over
