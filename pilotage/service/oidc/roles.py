"""From the claims of an issuer to callers: what its groups and scopes mean here."""

from collections.abc import Mapping
from dataclasses import replace

from pilotage.service import grants
from pilotage.service.callers import Caller, Capability, Role
from pilotage.service.oidc.issuer import Issuer, RoleRule
from requirements.errors import InvalidRequest
from requirements.problem import Problem

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
    return grants.grant(
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
