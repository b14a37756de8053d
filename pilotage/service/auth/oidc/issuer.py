"""A trusted issuer from the settings, and the mapping of its groups and scopes to roles."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pilotage.service.auth import callers as auth_callers
from pilotage.service.auth.callers import Caller, Capability, Role
from requirements.errors import InvalidRequest, Problem

#: Group of VO admins below the VO's own group, if the settings name no roles.
_ADMINS = "pilotage_admin"
#: Claims of access tokens of DiracX; the user's name is that of DIRAC's registry.
DIRACX_USER, _DIRACX_GROUP, _DIRACX_PROPERTIES = "preferred_username", "dirac_group", "dirac_properties"
_NORMAL_USER = "NormalUser"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRule:
    """Grants a role to a group, to a scope or to one subject; exactly one of them is set."""

    role: Role
    group: str | None = None
    scope: str | None = None
    subject: str | None = None
    vo: str | None = None  #: default: the VO of the issuer
    site: str | None = None
    owner_group: str | None = None

    def fits(self, *, groups: frozenset[str], scopes: frozenset[str], subject: str) -> bool:
        """Whether the rule applies to the bearer."""
        return self.group in groups or self.scope in scopes or self.subject == subject


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """Settings of the browser sign-in: our client id, secret and requested scopes."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)  #: None: a public client, protected by PKCE
    scopes: tuple[str, ...] = ("openid", "profile", "wlcg.groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """One issuer from the settings."""

    name: str  #: shown to people, and part of the address of its sign-in
    url: str  #: `iss` of its tokens
    audiences: frozenset[str]  #: one of them must be in `aud`; empty: there is none, as with DiracX
    is_diracx: bool = False  #: VO, group and properties are in claims of DiracX
    vo: str | None = None
    user_claim: str = "sub"  #: claim used as the owner of jobs
    group_claims: tuple[str, ...] = ("wlcg.groups", "groups")
    rules: tuple[RoleRule, ...] = ()  #: all that fit apply; the first is the main role
    sign_in: SignIn | None = None
    authorities: Path | None = None  #: file of CA certificates; None: the system's

    def is_named(self, url: object) -> bool:
        """Whether `url` names this issuer, with or without a trailing slash."""
        return isinstance(url, str) and url.rstrip("/") == self.url.rstrip("/")

    def groups(self, claims: Mapping[str, object]) -> frozenset[str]:
        """The groups that the claims name."""
        lists = [claims.get(claim) for claim in self.group_claims]
        return frozenset(
            name for names in lists if isinstance(names, list) for name in names if isinstance(name, str)
        )


def rules_of_vo(vo: str) -> tuple[RoleRule, ...]:
    """Default rules: members of the VO are users, its group `pilotage_admin` are VO admins."""
    return (RoleRule(role=Role.VO_ADMIN, group=f"/{vo}/{_ADMINS}"), RoleRule(role=Role.USER, group=f"/{vo}"))


def callers(issuer: Issuer, claims: Mapping[str, object]) -> tuple[Caller, ...]:
    """All roles of the bearer, in the order of the issuer's rules.

    A token with capabilities (`compute.create` …) is limited to these, as a user of the VO. Source: WLCG
    Common JWT Profiles, where capabilities take precedence over groups.
    """
    if issuer.is_diracx:
        return _callers_of_diracx(issuer, claims)
    scope = claims.get("scope", "")
    scopes = frozenset(scope.split()) if isinstance(scope, str) else frozenset[str]()
    if capabilities := frozenset(Capability(scope) for scope in scopes & frozenset(Capability)):
        return _with_capabilities(issuer, claims, capabilities)
    groups, subject = issuer.groups(claims), str(claims["sub"])
    fitting = [rule for rule in issuer.rules if rule.fits(groups=groups, scopes=scopes, subject=subject)]
    return tuple(dict.fromkeys(_caller(issuer, rule, claims) for rule in fitting))


def _callers_of_diracx(issuer: Issuer, claims: Mapping[str, object]) -> tuple[Caller, ...]:
    """The roles of a bearer in DiracX: a user of the VO that the token names if it is a NormalUser.

    For the rules its group is `/<vo>/<group>`, since each VO has groups of its own.

    Source: DiracX 0.7, `diracx.core.models.auth.AccessTokenPayload`.
    """
    vo, group, properties = (claims.get(name) for name in ("vo", _DIRACX_GROUP, _DIRACX_PROPERTIES))
    if not isinstance(vo, str) or not isinstance(group, str) or not isinstance(properties, list):
        problem = Problem(
            path=_DIRACX_GROUP, message=f"the token of {issuer.name} is no access token of DiracX"
        )
        raise InvalidRequest([problem])
    if issuer.vo not in (None, vo.lower()):
        return ()
    own = replace(issuer, vo=vo.lower())
    as_user = (RoleRule(role=Role.USER, owner_group=group),) if _NORMAL_USER in properties else ()
    groups, subject = frozenset({f"/{vo}/{group}"}), str(claims["sub"])
    fitting = [rule for rule in own.rules if rule.fits(groups=groups, scopes=frozenset(), subject=subject)]
    return tuple(dict.fromkeys(_caller(own, rule, claims) for rule in (*fitting, *as_user)))


def _with_capabilities(
    issuer: Issuer, claims: Mapping[str, object], capabilities: frozenset[Capability]
) -> tuple[Caller, ...]:
    groups = issuer.groups(claims)
    as_user = [rule for rule in issuer.rules if rule.role is Role.USER and rule.vo in (None, issuer.vo)]
    mine = next((rule for rule in as_user if rule.group in groups), RoleRule(role=Role.USER))
    if issuer.vo is None:
        return ()  # without a VO the scopes concern no jobs
    return (replace(_caller(issuer, mine, claims), capabilities=capabilities),)


def _caller(issuer: Issuer, rule: RoleRule, claims: Mapping[str, object]) -> Caller:
    user = claims.get(issuer.user_claim)
    if not isinstance(user, str) or not user:
        problem = Problem(path=issuer.user_claim, message=f"the token of {issuer.name} lacks this claim")
        raise InvalidRequest([problem])
    vo = rule.vo or issuer.vo
    return auth_callers.grant(role=rule.role, vo=vo, user=user, group=rule.owner_group, site=rule.site).caller
