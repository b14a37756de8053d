"""Links that sign a browser in, on the wire.

Tokens on the wire.
"""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


class LoginWish(BaseModel):
    """Whom the link is for; who says nothing asks for itself."""

    model_config = ConfigDict(extra="forbid")

    role: str | None = Field(default=None, max_length=40, description="Of a person; operators may name one.")
    vo: str | None = Field(default=None, max_length=255)
    user: str | None = Field(default=None, max_length=255)
    group: str | None = Field(default=None, max_length=255)
    site: str | None = Field(default=None, max_length=255)


class LoginLink(BaseModel):
    """A link that is good once."""

    path: str = Field(description="To be put behind the address of the service; the secret is behind the #.")
    expires_at: datetime


class Revocation(BaseModel):
    """A token that is not to be accepted any more."""

    model_config = ConfigDict(extra="forbid")

    token: str | None = Field(default=None, max_length=8192, description="The token itself.")
    jti: str | None = Field(default=None, min_length=1, max_length=255, description="Or its id.")


class Renewed(BaseModel):
    """A new token for the same bearer."""

    token: str
    expires_at: datetime
