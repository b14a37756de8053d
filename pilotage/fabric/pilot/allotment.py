"""The resources of a slot, and the parts of it that payloads get: together never more than the slot."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

#: Tag of jobs that need a whole node, and of queues that offer one.
WHOLE_NODE = "wholenode"
#: Variable with the names of GPUs: those of the slot in our environment, those of a payload in its own.
DEVICES = "CUDA_VISIBLE_DEVICES"
#: The same for other libraries, which hide all GPUs as well if it is empty: AMD's, and those of OpenCL.
OTHER_DEVICES = ("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


@dataclass(frozen=True)
class Allotment:
    """Resources of a part of a slot, or of all of it."""

    processors: int
    ram_mb: int | None = None  #: None: the slot's memory is unknown
    gpus: tuple[str, ...] = ()  #: the devices, as in CUDA_VISIBLE_DEVICES
    whole_node: bool = False  #: no other job is on the node
    cpus: tuple[int, ...] = ()  #: of the kernel, to which it is bound; none: the slot itself is bound to none
    scratch_mb: int | None = None  #: None: the slot's local disk is unknown


@dataclass(frozen=True)
class JobNeed:
    """Resources to allot to one job: the service's numbers, else those of its description."""

    processors: int = 1
    ram_mb: int | None = None  #: None: not stated
    gpus: int = 0
    whole_node: bool = False
    scratch_mb: int = 0  #: 0: not stated


class SlotRoom:
    """The free resources of a slot; thread-safe."""

    def __init__(self, whole: Allotment) -> None:
        self.whole = whole
        self._free = whole
        self._payloads = 0
        self._lock = threading.Lock()

    @property
    def free(self) -> Allotment:
        """The resources free now."""
        return self._free

    @property
    def is_empty(self) -> bool:
        """Whether no payload is running."""
        return self._payloads == 0

    @property
    def is_full(self) -> bool:
        """Whether no job fits any more: no free processor, or no free memory."""
        return self._free.processors < 1 or self._free.ram_mb == 0

    def take(self, needs: Mapping[str, JobNeed]) -> dict[str, Allotment]:
        """Allot resources to jobs that start together, by name.

        Jobs that state their memory get it; the others share the rest in proportion to their processors.
        """
        stating_first = sorted(needs.items(), key=lambda item: item[1].ram_mb is None)
        with self._lock:
            self._payloads += len(needs)
            return {name: self._take(need) for name, need in stating_first}

    def give_back(self, share: Allotment) -> None:
        """Free the resources of an ended payload."""
        with self._lock:
            free = self._free
            self._payloads -= 1
            self._free = Allotment(
                processors=free.processors + share.processors,
                ram_mb=None if free.ram_mb is None else free.ram_mb + (share.ram_mb or 0),
                gpus=(*free.gpus, *share.gpus),
                cpus=(*free.cpus, *share.cpus),
                scratch_mb=None if free.scratch_mb is None else free.scratch_mb + (share.scratch_mb or 0),
            )

    def _take(self, need: JobNeed) -> Allotment:
        free = self._free
        if need.whole_node:
            taken = replace(free, whole_node=True)
        else:
            processors = min(need.processors, free.processors)
            taken = Allotment(
                processors,
                _memory(need, free, processors),
                free.gpus[: need.gpus],
                cpus=free.cpus[: processors * len(self.whole.cpus) // self.whole.processors],
                scratch_mb=None if free.scratch_mb is None else min(need.scratch_mb, free.scratch_mb),
            )
        self._free = Allotment(
            processors=free.processors - taken.processors,
            ram_mb=None if free.ram_mb is None else free.ram_mb - (taken.ram_mb or 0),
            gpus=free.gpus[len(taken.gpus) :],
            cpus=free.cpus[len(taken.cpus) :],
            scratch_mb=None if free.scratch_mb is None else free.scratch_mb - (taken.scratch_mb or 0),
        )
        return taken


def _memory(need: JobNeed, free: Allotment, processors: int) -> int | None:
    if free.ram_mb is None:
        return None
    if need.ram_mb is not None:
        return min(need.ram_mb, free.ram_mb)
    return free.ram_mb * processors // max(free.processors, 1)


def job_need(
    description: Mapping[str, Any], *, processors: int | None, ram_mb: int | None, gpus: int | None
) -> JobNeed:
    """Determine the resources to allot to a job: the service's numbers if it sent any, else its own."""
    said = {name.lower(): value for name, value in description.items()}
    return JobNeed(
        processors=processors or read_number(said.get("numberofprocessors")) or 1,
        ram_mb=ram_mb,
        gpus=gpus or 0,
        whole_node=said.get("wholenode") is True,
        scratch_mb=find_scratch(description) or 0,
    )


def find_scratch(description: Mapping[str, Any]) -> int | None:
    """MB of local disk that a job requires, by its document or its keyword; None: it states none."""
    document = description.get("requirements")
    section = document.get("io") if isinstance(document, Mapping) else None
    stated = read_number(section.get("scratch_mb")) if isinstance(section, Mapping) else None
    return stated or read_number(
        {name.lower(): value for name, value in description.items()}.get("minscratch")
    )


def read_number(value: object) -> int | None:
    """A number above 0 of a description, also one that is written as 4000.0; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if value > 0 else None
