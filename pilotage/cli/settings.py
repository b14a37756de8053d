"""Issuers in `pilotage.yaml`: whose tokens are taken beside our own, and what their groups mean here.

Settings: flags, else PILOTAGE_* variables, else pilotage.yaml in the home directory.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pilotage.cli.client_settings import FILE, PREFIX, default_home
from requirements.errors import InvalidInput, Problem, did_you_mean

#: Roles that an issuer may give. Pilots and gateways have tokens of the installation, which they renew.
_ROLES = "^(user|vo_admin|site_admin|director|operator|monitor)$"
_NAME = "^[A-Za-z0-9._-]{1,40}$"


class _IssuerModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleSettings(_IssuerModel):
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


class SignInSettings(_IssuerModel):
    """How people sign in to the pages."""

    client_id: str = Field(min_length=1)
    client_secret_file: Path | None = None  #: none: a public client
    scopes: tuple[str, ...] = ("openid", "profile", "wlcg.groups")

    @field_validator("scopes")
    @classmethod
    def _openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        return scopes if "openid" in scopes else ("openid", *scopes)


class IssuerSettings(_IssuerModel):
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


#: Settings that are more than a text; a variable says them in YAML or JSON.
_STRUCTURED = frozenset({"issuers", "trusted_proxies"})


class InvalidSettings(InvalidInput):
    """A setting has a value that cannot be, or a name that is none."""

    code = "config_error"


class Settings(BaseModel):
    """What an installation is told from outside; the same name as flag, variable and in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path
    database_url: str
    #: Where `database_url` leads through pgbouncer: the server itself, for upgrades and for LISTEN.
    database_direct_url: str | None = None
    redis_url: str | None = None  #: none: the optimizers run inside the service
    host: str = "127.0.0.1"  #: address that the service listens at
    port: int = Field(default=8750, ge=0, le=65535)  #: 0: any free one
    tls_certificate: Path | None = None  #: PEM with its chain; none: the service speaks HTTP without TLS
    tls_key: Path | None = None  #: its key, unless that is in the same file
    trusted_proxies: tuple[str, ...] = ()  #: addresses and networks whose X-Forwarded headers are believed
    workers: int = Field(default=1, ge=1, le=256)  #: processes of `pilotage serve`
    resources: Path | None = None  #: configuration file that is imported at start
    blobs: Path  #: directory of sandboxes and outputs; shared by all hosts
    key: Path  #: the private key that signs tokens; the same on all hosts
    issuers: tuple[IssuerSettings, ...] = ()  #: whose tokens are taken beside our own
    site: str | None = None  #: `up` keeps local pilots for its queues
    pilots: int = Field(default=2, ge=0, le=1000)  #: how many
    #: What the jobs of local pilots are kept from; they run as the user of the service.
    isolation: str = Field(default="userns", pattern="^(userns|none)$")
    vo: str | None = None  #: VO of the token that `up` writes for this machine's user
    log_level: str = Field(default="warning", pattern="^(debug|info|warning|error)$")
    url: str | None = None  #: for clients: where the service is
    authorities: Path | None = None  #: for clients: CA certificates that the service is believed by
    token: str | None = Field(default=None, repr=False)  #: for clients: who they are

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _one_or_many(cls, said: object) -> object:
        return (said,) if isinstance(said, str) else said

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, said: tuple[str, ...]) -> tuple[str, ...]:
        for each in said:
            ip_network(each)
        return said

    @field_validator("tls_key")
    @classmethod
    def _of_a_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if key is not None and info.data.get("tls_certificate") is None:
            raise ValueError("needs a tls_certificate")
        return key

    @property
    def given_secrets(self) -> tuple[Path, ...]:
        """Files with secrets that others gave us."""
        ways = [each.sign_in for each in self.issuers if each.sign_in is not None]
        said = (self.tls_key or self.tls_certificate, *(each.client_secret_file for each in ways))
        return tuple(path for path in said if path is not None)

    @property
    def direct_url(self) -> str:
        """The database without a pooler before it."""
        return self.database_direct_url or self.database_url


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One place that settings come from."""

    values: Mapping[str, object]
    #: How the place calls the setting `name`.
    called: str


def load(flags: Mapping[str, object] = {}, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process.

    Args:
        flags: Settings given on the command line by their name; None means not given.
        environment: The process environment.

    Raises:
        InvalidSettings: with every problem, named as it was written (flag, variable, line of the file).
    """
    given = {name: value for name, value in flags.items() if value is not None}
    variables = _variables(environment)
    home = Path(str(given.get("home") or variables.get("home") or default_home(environment)))
    home = home.expanduser().absolute()
    file = home / FILE
    layers = (
        _Layer(values=_defaults(home), called="default {name}"),
        _Layer(values=_read(file), called=f"{file}: {{name}}"),
        _Layer(values=variables, called=PREFIX + "{upper}"),
        _Layer(values=given, called="--{dashed}"),
        _Layer(values={"home": home}, called="--home"),
    )
    merged = {name: value for layer in layers for name, value in layer.values.items()}
    origin = {name: layer.called for layer in layers for name in layer.values}
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise InvalidSettings([_problem(each, origin) for each in error.errors()]) from None


def _defaults(home: Path) -> dict[str, object]:
    return {
        "database_url": f"sqlite:///{home / 'pilotage.db'}",
        "blobs": home / "blobs",
        "key": home / "signing-key.pem",
    }


def _variables(environment: Mapping[str, str]) -> dict[str, object]:
    """Variables with a setting's name; others with our prefix belong to others (a pilot's secret)."""
    names = {PREFIX + name.upper(): name for name in Settings.model_fields}
    given = {names[key]: value for key, value in environment.items() if key in names and value != ""}
    return {name: _structured(value) if name in _STRUCTURED else value for name, value in given.items()}


def _structured(text: str) -> object:
    """What a variable says in YAML; the text itself, which is then refused, if it is none."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _read(file: Path) -> dict[str, object]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise InvalidSettings([Problem(path=str(file), message=f"is not UTF-8: {error.reason}")]) from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        what = getattr(error, "problem", None) or "is not YAML"
        raise InvalidSettings([Problem(path="settings", message=what, file=str(file), line=line)]) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSettings(
            [Problem(path=str(file), message=f"holds settings by name, not {content!r:.60}")]
        )
    return _checked_names(content, file)


def _checked_names(content: Mapping[object, object], file: Path) -> dict[str, object]:
    known = sorted(set(Settings.model_fields) - {"home"})
    wrong = [str(name) for name in content if name not in known]
    if wrong:
        raise InvalidSettings(
            [
                Problem(
                    path=name, message="unknown setting", suggestion=did_you_mean(name, known), file=str(file)
                )
                for name in wrong
            ]
        )
    return {str(name): value for name, value in content.items() if value is not None}


def _problem(error: Mapping[str, object], origin: Mapping[str, str]) -> Problem:
    location = error["loc"]
    name = str(location[0]) if isinstance(location, tuple) and location else "settings"
    called = origin.get(name, name).format(name=name, upper=name.upper(), dashed=name.replace("_", "-"))
    inner = "".join(f"/{part}" for part in location[1:]) if isinstance(location, tuple) else ""
    return Problem(path=called + inner, message=f"{error['msg']}, not {error['input']!r:.200}")
