"""Settings: flags, else variables, else those of a running `up`, else the file in the home directory."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cache, wraps
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from typer.models import OptionInfo

from cs_config.source.sections import Leaf, LeafValue, Section, to_plain
from cs_config.source.yaml_reader import EventReader
from pilotage import extensions
from pilotage.cli import home_lock, options
from pilotage.cli.options import CommandFunction
from pilotage.client.home import PREFIX, SETTINGS_FILE, default_home
from requirements.errors import InvalidInput, Problem, did_you_mean
from requirements.input_faults import SECRET, InputFault, list_faults
from taskqueue.blob_stores.place import S3Place, parse_place
from taskqueue.db import redis_servers
from taskqueue.db.server_urls import split_url

#: Roles that an issuer can grant. Pilots and gateways have tokens of the installation, which they renew.
_ROLES = "^(user|vo_admin|site_admin|director|operator|monitor)$"
_NAME = "^[A-Za-z0-9._-]{1,40}$"


class _IssuerModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleSettings(_IssuerModel):
    """A role, and the group, scope or subject that has it."""

    role: str = Field(pattern=_ROLES)
    """user, vo_admin, site_admin, director, operator or monitor."""
    group: str | None = None
    """In the claim `wlcg.groups`, such as `/cms/pilotage_admin`."""
    scope: str | None = None
    """Of the token."""
    subject: str | None = None
    """One person or program."""
    vo: str | None = None
    """VO of the role."""
    site: str | None = None
    """Site of a site admin."""
    owner_group: str | None = None
    """Owner group of jobs; `<vo>_user` if unset."""

    @model_validator(mode="after")
    def _one_of_three(self) -> "RoleSettings":
        if sum(each is not None for each in (self.group, self.scope, self.subject)) != 1:
            raise ValueError("needs exactly one of group, scope and subject")
        return self


class SignInSettings(_IssuerModel):
    """Client of an issuer for signing in to the web pages."""

    client_id: str = Field(min_length=1)
    """Client that is registered with the issuer."""
    client_secret_file: Path | None = None
    """File with its secret; without it, it is a public client."""
    scopes: tuple[str, ...] = ("openid", "profile", "wlcg.groups")
    """Scopes to request; `openid` is always one."""

    @field_validator("scopes")
    @classmethod
    def _openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        return scopes if "openid" in scopes else ("openid", *scopes)


class IssuerSettings(_IssuerModel):
    """A trusted issuer of tokens, and the roles of its groups."""

    url: str
    """The claim `iss` of its tokens."""
    name: str = Field(default="", pattern=f"^$|{_NAME}")
    """For people and addresses; the host of the URL if unset."""
    kind: Literal["oidc", "diracx"] = "oidc"
    """oidc, or diracx: VO, group and user are in claims of DiracX."""
    audience: tuple[str, ...] = Field(default=(), validate_default=True)
    """Accepted values of the claim `aud`, which DiracX does not set."""
    vo: str | None = None
    """VO whose groups have their default roles, if `roles` is empty."""
    user_claim: str = "sub"
    """Claim with the name of the user."""
    groups_claim: tuple[str, ...] = ("wlcg.groups", "groups")
    """Claims with the groups."""
    roles: tuple[RoleSettings, ...] = ()
    """Who has which role; empty: default roles of the groups of `vo`."""
    sign_in: SignInSettings | None = None
    """Signing in to the pages through this issuer."""
    authorities: Path | None = None
    """CA certificates for its HTTPS; those of the system if unset."""

    @field_validator("audience", "groups_claim", mode="before")
    @classmethod
    def _one_or_many(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @field_validator("audience")
    @classmethod
    def _require_audience(cls, given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if bool(given) is (info.data.get("kind") == "diracx"):
            raise ValueError("is needed, but for an issuer of the kind diracx, whose tokens name none")
        return given

    @model_validator(mode="after")
    def _require_roles(self) -> "IssuerSettings":
        if bool(self.audience) is (self.kind == "diracx"):
            raise ValueError(
                "an issuer needs an audience, except that tokens of one of kind diracx have none"
            )
        if self.kind == "oidc" and not self.roles and self.vo is None:
            raise ValueError("needs a vo, or roles: nobody would have one")
        return self


def _make_tuple(given: object) -> object:
    return (given,) if isinstance(given, str) else given


def _separate_hosts(url: str) -> str:
    """The URL as SQLAlchemy reads it, if it names several servers as libpq does: `//user@h1:5432,h2/db`."""
    parts = split_url(url)
    if len(parts.hosts) < 2 or not parts.scheme.startswith("postgres"):
        return url
    query = "&".join((*(f"host={host}" for host in parts.hosts), *filter(None, (parts.query,))))
    return f"{parts.scheme}://{parts.login and f'{parts.login}@'}/{parts.path}?{query}"


def _check_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    for each in networks:
        ip_network(each)
    return networks


def _keep_secret(read: Callable[[Any], object]) -> Callable[[object], object]:
    """A validator whose message does not show the value: it may have a password."""

    def validate(given: object) -> object:
        try:
            return read(given)
        except ValueError as error:
            raise PydanticCustomError(SECRET, "{problem}", {"problem": str(error)}) from None

    return validate


#: Where archives are; text that is no URL of S3 is a path.
BlobPlace = Annotated[Path | S3Place, BeforeValidator(_keep_secret(parse_place))]
RedisUrl = Annotated[str, AfterValidator(_keep_secret(redis_servers.check_url))]
#: Addresses and networks; a single one may be given as text.
Networks = Annotated[tuple[str, ...], BeforeValidator(_make_tuple), AfterValidator(_check_networks)]

_Own = TypeVar("_Own", bound=BaseModel)


class InvalidSettings(InvalidInput):
    """A setting has an invalid value or an unknown name."""

    code = "config_error"


class Recovery(StrEnum):
    """What happens after a loss of commits."""

    MANUAL = "manual"  #: nothing is stored before `pilotage db recover`
    AUTOMATIC = "automatic"  #: the first process that notices it recovers


class Settings(BaseModel):
    """The settings of an installation; the same names for flags, variables and the file.

    The help of a flag describes the setting.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path
    """Directory of the installation: signing key, settings, and without PostgreSQL the database."""
    database_url: Annotated[
        str,
        options.option("URL", "Database (default: PILOTAGE_DATABASE_URL or SQLite in the home directory)."),
    ]
    #: For upgrades and LISTEN.
    database_direct_url: Annotated[
        str | None,
        options.option(
            "URL",
            "Direct connection to the same database, if --database-url goes through pgbouncer "
            "(default: PILOTAGE_DATABASE_DIRECT_URL).",
        ),
    ] = None
    database_replica_url: str | None = None
    """Replica of the database, read for lists, accounting and explanations while it is at most 20 s late."""
    first_job_id: Annotated[
        int,
        options.option(
            "N",
            "Smallest id of new jobs, such as one beyond all ids of another system "
            "(default: PILOTAGE_FIRST_JOB_ID or 1); later smaller values have no effect.",
        ),
    ] = Field(default=1, ge=1, le=2**53)
    recovery: Recovery = Recovery.MANUAL
    """After a loss of commits: manual waits for `pilotage db recover`, automatic recovers at once."""
    redis_url: Annotated[
        RedisUrl | None,
        options.option(
            "URL",
            "Redis (default: PILOTAGE_REDIS_URL), or its Sentinels: redis+sentinel://host:26379,host:26379/name;"
            " without it, optimizers run in the service.",
            "--redis-url",
            "--redis",
        ),
    ] = None
    host: Annotated[
        str, options.option("ADDRESS", "Address to listen on (default: PILOTAGE_HOST or 127.0.0.1).")
    ] = "127.0.0.1"
    port: Annotated[
        int, options.option("N", "Port to listen on (default: PILOTAGE_PORT or 8750); 0: any free port.")
    ] = Field(default=8750, ge=0, le=65535)
    tls_certificate: Annotated[
        Path | None,
        options.option(
            "FILE",
            "Serve HTTPS with this certificate and its chain, PEM (default: PILOTAGE_TLS_CERTIFICATE); "
            "reloaded when the file changes.",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        options.option(
            "FILE", "Private key of the certificate, if not in the same file (default: PILOTAGE_TLS_KEY)."
        ),
    ] = None
    trusted_proxies: Networks = ()
    """Addresses and networks whose X-Forwarded headers are believed."""
    shutdown_delay: float = Field(default=0, ge=0, le=3600)
    """Seconds after SIGTERM for which requests are still answered while `/readyz` is 503, for balancers."""
    shutdown_grace: float = Field(default=25, ge=0, le=3600)
    """Seconds after SIGTERM until requests that are not answered yet are cut off."""
    workers: Annotated[
        int, options.option("N", "Number of processes that share the port (default: PILOTAGE_WORKERS or 1).")
    ] = Field(default=1, ge=1, le=256)
    resources: Annotated[
        Path | None,
        options.option("FILE", "Configuration file to import at start, if it changed since the last import."),
    ] = None
    blobs: BlobPlace
    """Directory of sandboxes and outputs, shared by all hosts; or `s3://bucket/prefix?endpoint=URL&region=NAME`."""
    other_blobs: BlobPlace | None = None
    """Another such place, read for what `blobs` lacks while archives move from one to the other."""
    key: Path
    """Private signing key of tokens; the same on all hosts."""
    issuers: tuple[IssuerSettings, ...] = ()
    """Issuers of tokens that are trusted besides the installation itself."""
    site: Annotated[
        str | None,
        options.option("SITE", "Run local pilots for the queues of this site while jobs wait for them."),
    ] = None
    pilots: Annotated[int, options.option("N", "Maximum number of local pilots at a time (default: 2).")] = (
        Field(default=2, ge=0, le=1000)
    )
    isolation: Annotated[
        str,
        options.option(
            "KIND",
            "Isolation of the jobs of local pilots: userns (default) hides the installation from them; "
            "none lets them read its keys and act with your rights.",
        ),
    ] = Field(default="userns", pattern="^(userns|none)$")
    #: Also of the token that `up` writes to client.env.
    vo: Annotated[str | None, options.option("VO", "VO of jobs that name none.")] = None
    log_level: Annotated[
        str, options.option("LEVEL", "Log level: debug, info, warning (default) or error.")
    ] = Field(default="warning", pattern="^(debug|info|warning|error)$")
    url: str | None = None
    """For clients: the service."""
    authorities: Path | None = None
    """For clients: CA certificates of the service."""
    proxy: str | None = None
    """For clients: HTTP proxy to the service, or `none`; else HTTPS_PROXY."""
    token: str | None = Field(default=None, repr=False)
    """For clients: the token."""

    @field_validator("database_url", "database_direct_url", "database_replica_url")
    @classmethod
    def _name_each_host(cls, url: str | None) -> str | None:
        return None if url is None else _separate_hosts(url)

    @field_validator("tls_key")
    @classmethod
    def _require_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if key is not None and info.data.get("tls_certificate") is None:
            raise ValueError("needs a tls_certificate")
        return key

    @property
    def foreign_secrets(self) -> tuple[Path, ...]:
        """Files with secrets that were created outside of the installation."""
        ways = [each.sign_in for each in self.issuers if each.sign_in is not None]
        files = (self.tls_key or self.tls_certificate, *(each.client_secret_file for each in ways))
        return tuple(path for path in files if path is not None)

    @property
    def direct_url(self) -> str:
        """The URL of the database without a pooler."""
        return self.database_direct_url or self.database_url

    def of(self, kind: type[_Own]) -> _Own:
        """The settings of a plug-in, by its model: the defaults where none of them is given."""
        return self if isinstance(self, kind) else kind()

    def __reduce__(self) -> tuple[Any, ...]:
        """For processes that get them: the class with plug-ins has no name by which it could be found."""
        return _make, ({name: getattr(self, name) for name in type(self).model_fields},)


def _make(values: Mapping[str, Any]) -> Settings:
    return _find_model(values).model_construct(**values)


@cache
def model_with_plugins() -> type[Settings]:
    """The settings of the program with those of its plug-ins."""
    return type("Settings", (Settings, *extensions.list_settings()), {"__module__": __name__})


def _find_model(names: Iterable[str]) -> type[Settings]:
    """The model that has these names: without plug-ins, which take time, if all are the program's."""
    return Settings if Settings.model_fields.keys() >= set(names) else model_with_plugins()


def command_with(*names: str, with_plugins: bool = False) -> Callable[[CommandFunction], CommandFunction]:
    """Make a command of a function of the settings: with an option for each of `names`, --json and --home.

    `with_plugins`: with the options of plug-ins, too.
    The function is called as `function(settings, as_json=…, …)`; its other parameters are options, too.
    """
    names = (*names, *(_list_plugin_options() if with_plugins else ()))
    shared = [options.parameter(name, _option_of(name)) for name in names]
    shared += [
        options.parameter("as_json", options.AsJson, default=False),
        options.parameter("home", options.Home),
    ]

    def decorate(function: CommandFunction) -> CommandFunction:
        _, *own = inspect.signature(function).parameters.values()

        @wraps(function)
        def command(*, as_json: bool, home: Path | None, **given: object) -> None:
            flags = {name: given.pop(name) for name in names}
            function(load({"home": home, **flags}), as_json=as_json, **given)

        return options.with_signature(command, [each for each in own if each.name != "as_json"] + shared)

    return decorate


def _list_plugin_options() -> list[str]:
    fields = model_with_plugins().model_fields
    return [name for name in fields if name not in Settings.model_fields and _list_flags(fields[name])]


def _list_flags(field: FieldInfo) -> list[OptionInfo]:
    return [each for each in field.metadata if isinstance(each, OptionInfo)]


def _option_of(name: str) -> object:
    field = _find_model([name]).model_fields[name]
    [flag] = _list_flags(field)
    return Annotated[field.annotation | None, flag]  # type: ignore[operator]


def load(flags: Mapping[str, object] = {}, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process."""
    given = {name: value for name, value in flags.items() if value is not None}
    named = {key.removeprefix(PREFIX).lower() for key in environment if key.startswith(PREFIX)}
    home = Path(str(given.get("home") or environment.get(f"{PREFIX}HOME") or default_home(environment)))
    home = home.expanduser().absolute()
    file = home / SETTINGS_FILE
    content = _read(file)
    model = _find_model([*given, *named, *map(str, content)])
    _check_names(content, model, file)
    #: Format of the name of a setting in messages, and values; later ones win.
    layers: dict[str, Mapping[str, object]] = {
        "default {name}": _defaults(home),
        f"{file}: {{name}}": {str(name): value for name, value in content.items() if value is not None},
        "`pilotage up`: {name}": home_lock.read_running(home),
        PREFIX + "{upper}": _variables(environment, model),
        "--{dashed}": given,
        "--home": {"home": home},
    }
    merged = {name: value for values in layers.values() for name, value in values.items()}
    origin = {name: label for label, values in layers.items() for name in values}
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        raise InvalidSettings([_problem(each, origin) for each in list_faults(error.errors())]) from None


#: Settings of `pilotage up` that other commands of its home directory take over while it runs.
_SHARED = ("database_url", "database_direct_url", "redis_url", "tls_certificate", "tls_key")


def share_with_commands(chosen: Settings) -> dict[str, str]:
    """The settings of this process for other commands of its home directory."""
    return {name: str(value) for name in _SHARED if (value := getattr(chosen, name)) is not None}


def _defaults(home: Path) -> dict[str, object]:
    return {
        "database_url": f"sqlite:///{home / 'pilotage.db'}",
        "blobs": home / "blobs",
        "key": home / "signing-key.pem",
    }


def _variables(environment: Mapping[str, str], model: type[Settings]) -> dict[str, object]:
    """Values of variables named after a setting; other variables with the prefix are ignored."""
    names = {PREFIX + name.upper(): name for name in model.model_fields}
    given = {names[key]: value for key, value in environment.items() if key in names and value != ""}
    return {
        name: _structured(value) if get_origin(model.model_fields[name].annotation) is tuple else value
        for name, value in given.items()
    }


def _structured(text: str) -> object:
    """The YAML or JSON of a variable; other text is returned as it is, for validation to reject."""
    try:
        return _read_yaml(text, "", InvalidSettings)
    except InvalidSettings:
        return text


def _read(file: Path) -> dict[object, object]:
    try:
        content = load_yaml(file, InvalidSettings)
    except FileNotFoundError:
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSettings(
            [Problem(path=str(file), message=f"holds settings by name, not {content!r:.60}")]
        )
    return content


class _SettingsReader(EventReader):
    """Reads settings as strictly as a configuration; any content is allowed, and case makes a difference."""

    nothing = None

    @staticmethod
    def fold_name(text: str) -> str:
        """Keep the name: those of variables may differ in case only."""
        return text

    def find_misplacement(self, parent: Section | list[Any] | None, *, is_list: bool) -> str | None:  # noqa: ARG002
        """Allow lists and sections everywhere."""
        return None

    def refuse_top_value(self, value: LeafValue, event: Any) -> None:  # noqa: ARG002
        """Keep it: what the content should be is checked later."""
        self.documents.append(Leaf(value, 1))


def load_yaml(file: Path, invalid: type[InvalidInput]) -> object:
    """The content of a YAML file; an error of the class `invalid` if it is not valid YAML."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise invalid([Problem(path=str(file), message=f"is not UTF-8: {error.reason}")]) from None
    return _read_yaml(text, str(file), invalid)


def _read_yaml(text: str, file: str, invalid: type[InvalidInput]) -> object:
    reader = _SettingsReader(file)
    reader.read_tolerantly(text)
    if reader.problems:
        raise invalid(reader.problems)
    return to_plain(reader.documents[0]) if reader.documents else None


def _check_names(content: Iterable[object], model: type[Settings], file: Path) -> None:
    known = sorted(set(model.model_fields) - {"home"})
    unknown = [str(name) for name in content if name not in known]
    if not unknown:
        return
    wrong = Problem(path="", message=f"unknown setting{extensions.hint_at_absent()}", file=str(file))
    problems = [replace(wrong, path=name, suggestion=did_you_mean(name, known)) for name in unknown]
    raise InvalidSettings(problems)


def _problem(fault: InputFault, origin: Mapping[str, str]) -> Problem:
    name, *inner = map(str, fault.location or ("settings",))
    label = origin.get(name, name).format(name=name, upper=name.upper(), dashed=name.replace("_", "-"))
    return Problem(path="/".join((label, *inner)), message=fault.message, suggestion=fault.suggestion)
