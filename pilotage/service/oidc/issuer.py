"""An issuer that the installation trusts, and what the claims of its tokens are worth here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.service.callers import Role

#: Group of those who look after a VO, below the VO's own, where the settings name no roles.
_ADMINS = "pilotage_admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRule:
    """Who has a role: those in a group, those with a scope, or one subject; exactly one of them is set."""

    role: Role
    group: str | None = None
    scope: str | None = None
    subject: str | None = None
    vo: str | None = None  #: else that of the issuer
    site: str | None = None
    owner_group: str | None = None

    def fits(self, *, groups: frozenset[str], scopes: frozenset[str], subject: str) -> bool:
        """Whether the rule is about the bearer."""
        return self.group in groups or self.scope in scopes or self.subject == subject


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """How people sign in with a browser: as what the issuer knows us, and what we ask it for."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)  #: None: a public client, protected by PKCE
    scopes: tuple[str, ...] = ("openid", "profile", "wlcg.groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """One issuer as the settings describe it."""

    name: str  #: for people, and part of the address of its sign-in
    url: str  #: what its tokens say as `iss`
    audiences: frozenset[str]  #: one of them has to be in `aud`
    vo: str | None = None
    user_claim: str = "sub"  #: what jobs give as their owner
    group_claims: tuple[str, ...] = ("wlcg.groups", "groups")
    rules: tuple[RoleRule, ...] = ()  #: a bearer has all that fit, the first for what needs one
    sign_in: SignIn | None = None
    authorities: Path | None = None  #: file of CA certificates; None: the system's

    def is_named(self, url: object) -> bool:
        """Whether a token or a document calls the issuer so; a slash at the end says nothing."""
        return isinstance(url, str) and url.rstrip("/") == self.url.rstrip("/")

    def groups(self, claims: Mapping[str, object]) -> frozenset[str]:
        """The groups that the claims name."""
        return frozenset(name for claim in self.group_claims for name in _names(claims.get(claim)))


def rules_of_vo(vo: str) -> tuple[RoleRule, ...]:
    """Who has a role where the settings do not say: members are users, a group of them looks after the VO."""
    return (
        RoleRule(role=Role.VO_ADMIN, group=f"/{vo}/{_ADMINS}"),
        RoleRule(role=Role.USER, group=f"/{vo}"),
    )


def _names(claim: object) -> Iterator[str]:
    yield from (name for name in claim if isinstance(name, str)) if isinstance(claim, list) else ()
