"""Sign-in links and tokens."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field


class LoginWish(BaseModel):
    """The caller that the link is for; default: the sender itself."""

    model_config = ConfigDict(extra="forbid")

    role: str | None = Field(default=None, max_length=40, description="A person's role; operators only.")
    vo: str | None = Field(default=None, max_length=255)
    user: str | None = Field(default=None, max_length=255)
    group: str | None = Field(default=None, max_length=255)
    site: str | None = Field(default=None, max_length=255)


class LoginLink(BaseModel):
    """A one-time sign-in link."""

    path: str = Field(description="To append to the address of the service; the secret follows the #.")
    expires_at: datetime


class Revocation(BaseModel):
    """The token to revoke: exactly one of `token` and `jti`."""

    model_config = ConfigDict(extra="forbid")

    token: str | None = Field(default=None, max_length=8192, description="The token itself.")
    jti: str | None = Field(default=None, min_length=1, max_length=255, description="Its id.")


class Renewed(BaseModel):
    """A new token for the same bearer."""

    token: str
    expires_at: datetime
