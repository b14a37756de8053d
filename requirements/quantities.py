"""Quantities of slots for which jobs, pilots and queues have one keyword, one a row.

From a row follow the keywords of jobs and of requests for work, the parameters of queues with the rights of
VOs, the offer and the bounds of a queue, and the condition of matching. Beside it a quantity is a field of
`JobDescription`, `RequirementClass`, `Resource` and `Allotment`, and a column of attempts.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotQuantity:
    """Something that a slot has a number of, and that a job needs a number of for itself."""

    name: str  #: of the fields
    keyword: str  #: and parameter of a queue
    also: tuple[str, ...] = ()  #: other spellings of the keyword
    other_parameter: str  #: other name of the parameter, which counts where the keyword is not stated
    most: int  #: of a job or a slot

    @property
    def parameters(self) -> tuple[str, str]:
        """The parameters of a queue that state it; the first one that does counts."""
        return self.keyword, self.other_parameter


QUANTITIES: Final = (
    SlotQuantity(
        name="gpus",
        keyword="GPUs",
        also=("GPU", "NumberOfGPUs"),
        other_parameter="NumberOfGPUs",
        most=1024,
    ),
)
