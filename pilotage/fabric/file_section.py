"""Sections of a site's files: of directors and gateways, their batch systems and dialects."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]


class FileSection(BaseModel):
    """A section of a file; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    FORMER: ClassVar[Mapping[str, str]] = {}  #: former names of settings, which go on working

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, said: object) -> object:
        if not isinstance(said, dict):
            return said
        former = {name: new for name, new in cls.FORMER.items() if name in said}
        if twice := sorted(name for name, new in former.items() if new in said):
            raise ValueError(f"{twice[0]}: the former name of {former[twice[0]]}, which is there as well")
        return {former.get(name, name): value for name, value in said.items()}


class SettingsPart(FileSection):
    """Some settings of a batch system, perhaps with secrets."""

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """Files with keys and tokens for the batch system, and sockets that stand for them."""
        parts = [part for part in vars(self).values() if isinstance(part, SettingsPart)]
        return tuple(file for part in parts for file in part.secret_files)
