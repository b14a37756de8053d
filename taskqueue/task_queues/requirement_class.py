"""Requirement classes: the distinct sets of requirements used by matching.

The owner is not part of a class. A class is immutable, so that a cached copy is never stale. Names keep the
job's spelling; `matcher.rules` compares without case.
"""

import hashlib
import json
import logging
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RequirementClass:
    """Requirements of a job on the resource where it runs. An empty set is no requirement.

    Source: DIRAC TaskQueueDB, plus cores, memory per core, GPUs and the SubmitPool.
    """

    vo: str  #: lower case
    cpu_time: int  #: seconds, upper end of the segment that contains the job's own
    sites: frozenset[str] = frozenset()
    banned_sites: frozenset[str] = frozenset()
    grid_ces: frozenset[str] = frozenset()
    platforms: frozenset[str] = frozenset()  #: one of them; `OSCompatibility` says which nodes run it
    job_types: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()  #: the resource must offer all of them
    min_ram: int = 0  #: MB
    max_ram: int | None = None  #: MB; None: no limit
    min_ram_per_core: int = 0  #: MB
    processors_min: int = 1
    processors_max: int | None = 1  #: None: unlimited
    whole_node: bool = False
    gpus: int = 0
    #: Places of each input file, storage elements or sites: the resource must be near one of each.
    replicas: frozenset[frozenset[str]] = frozenset()
    submit_pool: str | None = None  #: pool id; None: no Requirements

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the definition."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Definition in canonical form."""
        return json.dumps(
            {name: _as_json(value) for name, value in self._items()},
            sort_keys=True,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "RequirementClass | None":
        """Parse a definition; None: it has a field of a later release, whose processes match its jobs."""
        written = json.loads(text)
        if later := written.keys() - _FIELDS:
            _report_later(*sorted(later))
            return None
        found: dict[str, Any] = {name: _from_json(value) for name, value in written.items()}
        return cls(**found)

    def _items(self) -> list[tuple[str, object]]:
        # Defaults are left out, so that a new kind of requirement does not change existing digests.
        return [
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]


def _as_json(value: object) -> object:
    return sorted(map(_as_json, value)) if isinstance(value, frozenset) else value  # type: ignore[type-var]


def _from_json(value: object) -> object:
    return frozenset(map(_from_json, value)) if isinstance(value, list) else value


_FIELDS = frozenset(field.name for field in fields(RequirementClass))


@cache  # so that it is logged once
def _report_later(*names: str) -> None:
    log.warning("jobs that require %s, which this release does not know, are passed over", ", ".join(names))
