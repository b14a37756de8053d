"""Tokens on the wire."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


class Revocation(BaseModel):
    """A token that is not to be accepted any more."""

    model_config = ConfigDict(extra="forbid")

    token: str | None = Field(default=None, max_length=8192, description="The token itself.")
    jti: str | None = Field(default=None, min_length=1, max_length=255, description="Or its id.")


class Renewed(BaseModel):
    """A new token for the same bearer."""

    token: str
    expires_at: datetime
