"""Quantities of slots for which jobs, pilots and queues have one keyword, one a row.

From a row follow the keywords of jobs and of requests for work, the parameters of queues with the rights of
VOs, the fields of documents, the offer and the bounds of a queue, the condition of matching, the share of
each job of a slot, and the column of attempts. Beside it a quantity is a field of the two classes below.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Final

from requirements.values import fold


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityDetail:
    """What is stated of those that a node has of a quantity, if it has some."""

    name: str  #: of the fields
    keyword: str  #: of jobs, requests and node measurements, and parameter of a queue
    field: str  #: of documents of DiracX's match-making specification
    is_optional: bool = False  #: whether a document of a node that has some may leave it out
    is_version: bool = False  #: whether it is a text although it may look like a number: 12.10 is not 12.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotQuantity:
    """Something that a slot has a number of, and that a job needs a number of for itself."""

    name: str  #: of the fields
    keyword: str  #: and parameter of a queue
    also: tuple[str, ...] = ()  #: other spellings of the keyword
    other_parameter: str  #: other name of the parameter, which counts where the keyword is not stated
    field: str  #: of documents of DiracX's match-making specification
    upper: str  #: attribute of a job that bounds it from above
    most: int  #: of a job or a slot
    details: tuple[QuantityDetail, ...] = ()

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
        field="gpu/count",
        upper="gpus_max",
        most=1024,
        details=(
            QuantityDetail(name="gpu_vendor", keyword="GPUVendor", field="gpu/vendor"),
            QuantityDetail(name="gpu_architecture", keyword="GPUArchitecture", field="gpu/arch"),
            QuantityDetail(name="gpu_memory_mb", keyword="GPUMemory", field="gpu/vram_mb_per_gpu"),
            QuantityDetail(
                name="gpu_runtime",
                keyword="GPURuntime",
                field="gpu/min_runtime_version",
                is_optional=True,
                is_version=True,
            ),
        ),
    ),
)
#: The details of all quantities.
DETAILS: Final = tuple(chain.from_iterable(each.details for each in QUANTITIES))
#: The keywords of those that are versions, folded.
VERSIONS: Final = frozenset(fold(each.keyword) for each in DETAILS if each.is_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """The quantities of a job, a requirement class, a resource or its hardware."""

    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllottedQuantities:
    """The quantities that a job is given of a slot; None: not specified."""

    gpus: int | None = None
