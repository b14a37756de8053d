"""Issuers in `pilotage.yaml`: whose tokens are taken beside our own, and what their groups mean here."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

#: Roles that an issuer may give. Pilots and gateways have tokens of the installation, which they renew.
_ROLES = "^(user|vo_admin|site_admin|director|operator|monitor)$"
_NAME = "^[A-Za-z0-9._-]{1,40}$"


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleSettings(_Said):
    """Who has a role."""

    role: str = Field(pattern=_ROLES)
    group: str | None = None  #: of the claim `wlcg.groups`, as `/cms/pilotage_admin`
    scope: str | None = None  #: of the token
    subject: str | None = None  #: one person or program
    vo: str | None = None
    site: str | None = None
    owner_group: str | None = None  #: else `<vo>_user`

    @model_validator(mode="after")
    def _one_of_three(self) -> "RoleSettings":
        if sum(each is not None for each in (self.group, self.scope, self.subject)) != 1:
            raise ValueError("needs exactly one of group, scope and subject")
        return self


class SignInSettings(_Said):
    """How people sign in to the pages."""

    client_id: str = Field(min_length=1)
    client_secret_file: Path | None = None  #: none: a public client
    scopes: tuple[str, ...] = ("openid", "profile", "wlcg.groups")

    @field_validator("scopes")
    @classmethod
    def _openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        return scopes if "openid" in scopes else ("openid", *scopes)


class IssuerSettings(_Said):
    """One issuer."""

    url: str  #: as its tokens have it in `iss`
    name: str = Field(default="", pattern=f"^$|{_NAME}")  #: else its host
    audience: tuple[str, ...] = Field(min_length=1)  #: what its tokens have in `aud` when they are for us
    vo: str | None = None
    user_claim: str = "sub"
    groups_claim: tuple[str, ...] = ("wlcg.groups", "groups")
    roles: tuple[RoleSettings, ...] = ()  #: none: of the groups of `vo`
    sign_in: SignInSettings | None = None
    authorities: Path | None = None  #: CA certificates that its https is believed by

    @field_validator("audience", "groups_claim", mode="before")
    @classmethod
    def _one_or_many(cls, said: Any) -> Any:
        return (said,) if isinstance(said, str) else said

    @model_validator(mode="after")
    def _somebody(self) -> "IssuerSettings":
        if not self.roles and self.vo is None:
            raise ValueError("needs a vo, or roles: nobody would have one")
        return self
