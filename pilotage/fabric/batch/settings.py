"""Settings of a batch system in a configuration file."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pilotage.fabric.batch.arc.rest import ComputingElement
from pilotage.fabric.batch.dialect import dialect
from pilotage.fabric.batch.dialect.dialect import Dialect, merge_dialect

Flags = tuple[Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00\n]+$")], ...]


class BatchSystemKind(StrEnum):
    """The supported batch systems."""

    SLURM = "slurm"
    GRID_ENGINE = "gridengine"
    HTCONDOR = "htcondor"
    PBS = "pbs"
    LSF = "lsf"
    COMMAND = "command"
    ARC = "arc"
    LOCAL = "local"


#: Those that are told in a dialect.
SPOKEN = frozenset({BatchSystemKind.PBS, BatchSystemKind.LSF, BatchSystemKind.COMMAND})
_COMMANDS = frozenset({"environment", "flags", "ssh"})
#: What has to be said of each kind, and what else may be.
_NEEDED: Mapping[BatchSystemKind, tuple[str, ...]] = {
    BatchSystemKind.SLURM: ("directory",),
    BatchSystemKind.GRID_ENGINE: ("directory",),
    BatchSystemKind.HTCONDOR: ("directory",),
    **dict.fromkeys(SPOKEN, ("directory", "dialect")),
    BatchSystemKind.ARC: ("ce",),
    BatchSystemKind.LOCAL: ("directory", "cores", "memory"),
}
_ALLOWED: Mapping[BatchSystemKind, frozenset[str]] = {
    **dict.fromkeys(BatchSystemKind, _COMMANDS),
    BatchSystemKind.ARC: frozenset({"flags"}),
    BatchSystemKind.LOCAL: frozenset(),
}


class HeadNode(BaseModel):
    """A host with the batch system's commands, reached over SSH; its host key has to be known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(min_length=1)
    user: str = Field(min_length=1)
    key: Path
    known_hosts: Path
    port: int = Field(default=22, ge=1, le=65_535)


class SystemSettings(BaseModel):
    """Settings of one batch system."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: BatchSystemKind
    directory: Path | None = None  #: where its jobs' files lie; its nodes have to see it, too
    environment: dict[str, str] = Field(default_factory=dict)  #: of its commands
    flags: Flags = ()  #: arguments of every submission
    ssh: HeadNode | None = None  #: none: the commands are on this host
    cores: int | None = Field(default=None, ge=1)  #: of this host that may be used, for `local`
    memory: int | None = Field(default=None, ge=1)  #: MB of this host, for `local`
    #: Of `command`: all of it; of `pbs` and `lsf`: what differs from the shipped one.
    dialect: Dialect | None = None
    ce: ComputingElement | None = None  #: of `arc`

    @model_validator(mode="before")
    @classmethod
    def _speaks_the_shipped_dialect(cls, said: object) -> object:
        """Put the changes of a site into the dialect that is shipped for its kind."""
        if not isinstance(said, dict) or said.get("kind") not in dialect.NAMES:
            return said
        changes = {} if said.get("dialect") is None else said["dialect"]
        if not isinstance(changes, dict):
            return said
        return {**said, "dialect": merge_dialect(dialect.shipped_content(said["kind"]), changes)}

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if missing := [name for name in _NEEDED[self.kind] if getattr(self, name) is None]:
            raise ValueError(f"systems of the kind {self.kind} need {' and '.join(missing)}")
        for name in sorted(self.model_fields_set - {"kind"}):
            if getattr(self, name) and not _has(self.kind, name):
                kinds = ", ".join(sorted(kind for kind in BatchSystemKind if _has(kind, name)))
                raise ValueError(f"systems of the kind {self.kind} have no {name}: it is for {kinds}")
        if self.directory is not None and not self.directory.is_absolute():
            raise ValueError(f"directory: {self.directory} is not absolute")
        return self


def _has(kind: BatchSystemKind, name: str) -> bool:
    return name in _NEEDED[kind] or name in _ALLOWED[kind]


#: What settings of a batch system may be within.
PARTS: tuple[type[BaseModel], ...] = (SystemSettings, HeadNode, ComputingElement, *dialect.PARTS)
