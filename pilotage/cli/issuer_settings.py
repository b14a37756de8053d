"""Builds the trusted issuers of a service from the settings."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pilotage.cli.settings import InvalidSettings, IssuerSettings, RoleSettings, SignInSettings
from pilotage.service.auth import callers
from pilotage.service.auth.callers import Role
from pilotage.service.auth.oidc import discovery, issuer
from pilotage.service.auth.oidc.issuer import Issuer, RoleRule, SignIn
from pilotage.service.auth.oidc.issuers import Issuers, TrustedIssuer
from requirements.errors import InvalidRequest, Problem


def trusted_issuers(settings: Iterable[IssuerSettings]) -> Issuers:
    """The validated issuers; no request is sent to them yet."""
    every = list(settings)
    if problems := [*_problems(every), *_duplicates(every)]:
        raise InvalidSettings(problems)
    return Issuers([TrustedIssuer(_issuer(each)) for each in every])


def _issuer(given: IssuerSettings) -> Issuer:
    vo = given.vo.lower() if given.vo else None
    is_diracx = given.kind == "diracx"
    rules = tuple(_rule(each) for each in given.roles) or (() if is_diracx else issuer.rules_of_vo(vo or ""))
    return Issuer(
        is_diracx=is_diracx,
        name=_name(given),
        url=given.url,
        audiences=frozenset(given.audience),
        vo=vo,
        user_claim=issuer.DIRACX_USER if is_diracx else given.user_claim,
        group_claims=given.groups_claim,
        rules=rules,
        sign_in=_sign_in(given.sign_in),
        authorities=given.authorities,
    )


def _rule(given: RoleSettings) -> RoleRule:
    return RoleRule(**{**given.model_dump(), "role": Role(given.role)})


def _sign_in(given: SignInSettings | None) -> SignIn | None:
    if given is None:
        return None
    secret = (
        given.client_secret_file.read_text(encoding="utf-8").strip() if given.client_secret_file else None
    )
    return SignIn(client_id=given.client_id, client_secret=secret, scopes=given.scopes)


def _name(given: IssuerSettings) -> str:
    return given.name or urlsplit(given.url).hostname or ""


def _problems(issuers: Iterable[IssuerSettings]) -> Iterator[Problem]:
    for each in issuers:
        where = f"issuers/{each.url}"
        if not discovery.is_safe(each.url):
            yield Problem(path=where, message="is no https address")
        for rule in each.roles:
            # The tokens of DiracX name the VO.
            vo = each.vo or ("any" if each.kind == "diracx" else None)
            yield from _rule_problems(f"{where}/roles", rule, vo)
        files = {"authorities": each.authorities}
        if each.sign_in:
            files["client_secret_file"] = each.sign_in.client_secret_file
        yield from (_unreadable(where, name, file) for name, file in files.items() if not _is_readable(file))


def _rule_problems(where: str, rule: RoleSettings, vo: str | None) -> Iterator[Problem]:
    try:
        callers.grant(role=rule.role, vo=rule.vo or vo, user="x", group=rule.owner_group, site=rule.site)
    except InvalidRequest as refused:
        for problem in refused.problems:
            yield Problem(path=f"{where}/{problem.path}", message=problem.message)


def _is_readable(file: Path | None) -> bool:
    if file is None:
        return True
    try:
        return bool(file.read_bytes().strip())
    except OSError:
        return False


def _unreadable(where: str, name: str, file: Path | None) -> Problem:
    return Problem(path=f"{where}/{name}", message=f"{file} cannot be read, or is empty")


def _duplicates(issuers: Iterable[IssuerSettings]) -> Iterator[Problem]:
    for what, names in (
        ("url", [each.url.rstrip("/") for each in issuers]),
        ("name", [_name(each) for each in issuers]),
    ):
        for twice in sorted({name for name in names if names.count(name) > 1}):
            yield Problem(path="issuers", message=f"two have the {what} {twice}")
