"""From settings to the issuers that a service trusts."""

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
    """The issuers, each checked; none of them is asked for anything yet.

    Raises:
        InvalidSettings: with every problem.
    """
    said = list(settings)
    if problems := [*_problems(said), *_same(said)]:
        raise InvalidSettings(problems)
    return Issuers([TrustedIssuer(_issuer(each)) for each in said])


def _issuer(said: IssuerSettings) -> Issuer:
    vo = said.vo.lower() if said.vo else None
    rules = tuple(_rule(each) for each in said.roles) or issuer.rules_of_vo(vo or "")
    return Issuer(
        name=_name(said),
        url=said.url,
        audiences=frozenset(said.audience),
        vo=vo,
        user_claim=said.user_claim,
        group_claims=said.groups_claim,
        rules=rules,
        sign_in=_sign_in(said.sign_in),
        authorities=said.authorities,
    )


def _rule(said: RoleSettings) -> RoleRule:
    return RoleRule(**{**said.model_dump(), "role": Role(said.role)})


def _sign_in(said: SignInSettings | None) -> SignIn | None:
    if said is None:
        return None
    secret = said.client_secret_file.read_text(encoding="utf-8").strip() if said.client_secret_file else None
    return SignIn(client_id=said.client_id, client_secret=secret, scopes=said.scopes)


def _name(said: IssuerSettings) -> str:
    return said.name or urlsplit(said.url).hostname or ""


def _problems(said: Iterable[IssuerSettings]) -> Iterator[Problem]:
    for each in said:
        where = f"issuers/{each.url}"
        if not discovery.is_safe(each.url):
            yield Problem(path=where, message="is no https address")
        for rule in each.roles:
            yield from _rule_problems(f"{where}/roles", rule, each.vo)
        files = {"authorities": each.authorities}
        if each.sign_in:
            files["client_secret_file"] = each.sign_in.client_secret_file
        yield from (_unreadable(where, name, file) for name, file in files.items() if not _reads(file))


def _rule_problems(where: str, rule: RoleSettings, vo: str | None) -> Iterator[Problem]:
    try:
        callers.grant(role=rule.role, vo=rule.vo or vo, user="x", group=rule.owner_group, site=rule.site)
    except InvalidRequest as refused:
        for problem in refused.problems:
            yield Problem(path=f"{where}/{problem.path}", message=problem.message)


def _reads(file: Path | None) -> bool:
    if file is None:
        return True
    try:
        return bool(file.read_bytes().strip())
    except OSError:
        return False


def _unreadable(where: str, name: str, file: Path | None) -> Problem:
    return Problem(path=f"{where}/{name}", message=f"{file} cannot be read, or is empty")


def _same(said: Iterable[IssuerSettings]) -> Iterator[Problem]:
    """Two that nobody could tell apart."""
    for what, names in (
        ("url", [each.url.rstrip("/") for each in said]),
        ("name", [_name(each) for each in said]),
    ):
        for twice in sorted({name for name in names if names.count(name) > 1}):
            yield Problem(path="issuers", message=f"two have the {what} {twice}")
