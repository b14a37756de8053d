"""Requirement classes: the distinct sets of requirements that matching looks at.

The owner is no part of a class. A class is immutable, so a copy in memory is never stale. Names keep the
spelling of the job; `matcher.rules` compares without case.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RequirementClass:
    """What a job asks of the place where it runs. An empty set asks nothing.

    Source: DIRAC TaskQueueDB, with cores, memory per core, GPUs and the SubmitPool beside it.
    """

    vo: str  #: lower case
    cpu_time: int  #: seconds, the segment that the job's own falls into
    sites: frozenset[str] = frozenset()
    banned_sites: frozenset[str] = frozenset()
    grid_ces: frozenset[str] = frozenset()
    platforms: frozenset[str] = frozenset()  #: with all that are compatible
    job_types: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()  #: the resource must offer all of them
    min_ram: int = 0  #: MB
    max_ram: int | None = None  #: MB; None: says nothing
    min_ram_per_core: int = 0  #: MB
    processors_min: int = 1
    processors_max: int | None = 1  #: None: open
    whole_node: bool = False
    gpus: int = 0
    submit_pool: str | None = None  #: pool id; None: no Requirements

    @cached_property
    def digest(self) -> str:
        """SHA-256 that says the same on every machine."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Its definition, in one form only."""
        return json.dumps(
            {name: sorted(value) if isinstance(value, frozenset) else value for name, value in self._items()},
            sort_keys=True,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "RequirementClass":
        """Read a definition back; a field unknown to this release is an error: it would be ignored else."""
        written = json.loads(text)
        asked: dict[str, Any] = {
            name: frozenset(value) if isinstance(value, list) else value for name, value in written.items()
        }
        return cls(**asked)

    def _items(self) -> list[tuple[str, object]]:
        # Defaults are left out: a new kind of requirement does not change the digest of the others.
        return [
            (field.name, getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
