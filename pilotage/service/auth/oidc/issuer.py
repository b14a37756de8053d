"""An issuer that the installation trusts, and what the claims of its tokens are worth here.

From the claims of an issuer to callers: what its groups and scopes mean here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pilotage.service.auth import callers as auth_callers
from pilotage.service.auth.callers import Caller, Capability, Role
from requirements.errors import InvalidRequest, Problem

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


_CAPABILITIES = frozenset(Capability)


def callers(issuer: Issuer, claims: Mapping[str, object]) -> tuple[Caller, ...]:
    """All that the bearer may act as, in the order of the issuer's rules.

    A token with capabilities (`compute.create` …) is good for just these, as a user of the VO: whoever asked
    for it wanted no more. Source: WLCG Common JWT Profiles, where capabilities go before groups.

    Raises:
        InvalidRequest: A claim makes no sense as a name.
    """
    scopes = _scopes(claims)
    if capabilities := frozenset(Capability(scope) for scope in scopes & _CAPABILITIES):
        return _with_capabilities(issuer, claims, capabilities)
    groups, subject = issuer.groups(claims), str(claims["sub"])
    fitting = [rule for rule in issuer.rules if rule.fits(groups=groups, scopes=scopes, subject=subject)]
    return tuple(dict.fromkeys(_caller(issuer, rule, claims) for rule in fitting))


def _with_capabilities(
    issuer: Issuer, claims: Mapping[str, object], capabilities: frozenset[Capability]
) -> tuple[Caller, ...]:
    groups = issuer.groups(claims)
    as_user = [rule for rule in issuer.rules if rule.role is Role.USER and rule.vo in (None, issuer.vo)]
    mine = next((rule for rule in as_user if rule.group in groups), RoleRule(role=Role.USER))
    if issuer.vo is None:
        return ()  # nobody said whose jobs the scopes are about
    return (replace(_caller(issuer, mine, claims), capabilities=capabilities),)


def _caller(issuer: Issuer, rule: RoleRule, claims: Mapping[str, object]) -> Caller:
    return auth_callers.grant(
        role=rule.role,
        vo=rule.vo or issuer.vo,
        user=_user(issuer, claims),
        group=rule.owner_group,
        site=rule.site,
    ).caller


def _user(issuer: Issuer, claims: Mapping[str, object]) -> str:
    name = claims.get(issuer.user_claim)
    if not isinstance(name, str) or not name:
        problem = Problem(path=issuer.user_claim, message=f"{issuer.name} does not say it of the bearer")
        raise InvalidRequest([problem])
    return name


def _scopes(claims: Mapping[str, object]) -> frozenset[str]:
    scope = claims.get("scope", "")
    return frozenset(scope.split()) if isinstance(scope, str) else frozenset()
