"""The configuration on the wire."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ConfigAnswer(BaseModel):
    """The configuration in force, as far as the caller may see it."""

    version: int
    config: dict[str, Any] = Field(description="The tree.")
    text: str | None = Field(default=None, description="The source as it was written; operators only.")
    source: str | None = Field(default=None, description="File that it came from, or `api`; operators only.")


class NewConfig(BaseModel):
    """A whole configuration: exactly one of `config` and `text`."""

    model_config = ConfigDict(extra="forbid")

    config: dict[str, Any] | None = Field(default=None, description="The tree.")
    text: str | None = Field(default=None, description="The YAML source, which keeps its comments.")
    source: str = Field(default="api", max_length=255, description="File that the text came from.")
    message: str = Field(default="", max_length=2000, description="Why.")


class NewVersion(BaseModel):
    """The version that is in force now."""

    version: int


class Rollback(BaseModel):
    """Make an older version the newest one."""

    model_config = ConfigDict(extra="forbid")

    version: int = Field(ge=1, le=2**31 - 1)


class VersionAnswer(BaseModel):
    """What is known about a version."""

    version: int
    digest: str = Field(description="SHA-256 of its text.")
    source: str
    author: str
    message: str
    created_at: datetime


class Versions(BaseModel):
    """The latest versions, the newest first."""

    versions: list[VersionAnswer]
