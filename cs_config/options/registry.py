"""Reader of `Registry`: VOs, owner groups, and the certificates of users and hosts."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from cs_config.options import bounds
from cs_config.options.option_model import Options, Texts
from cs_config.source import sections
from cs_config.source.sections import Section, model_section
from cs_config.tree.address import NAME, NAME_ALLOWED
from requirements.errors import Problem
from requirements.values import fold

DEFAULT_SHARE = 1000.0


#: The allowed sections.
LEVELS = ("VO", "Groups", "Users", "Hosts")


class _VO(Options):
    """`Registry/VO/<vo>`."""

    description: str = ""
    """For people."""
    default_group: str | None = None
    """Of those who do not state their group."""


def _read_vo(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not allowed here, allowed are {NAME_ALLOWED}")
    return fold(name)


class Group(Options):
    """`Registry/Groups/<group>`: an owner group. Source: DIRAC."""

    vo: Annotated[Annotated[str, AfterValidator(_read_vo)] | None, Field(alias="VO")] = None
    """The VO that the group belongs to; without it the VO of the token."""
    users: Texts = ()
    """Its members."""
    job_share: Annotated[float, Field(ge=0, le=bounds.SHARE)] = DEFAULT_SHARE
    """Its weight among the groups."""
    properties: Texts = ()
    """NormalUser, JobSharing, GenericPilot, JobAdministrator and the like."""
    allow_background_tqs: Annotated[bool, Field(alias="AllowBackgroundTQs")] = False
    """Jobs of the lowest priority do not count when its share is split."""


class User(Options):
    """`Registry/Users/<user>`. Source: DIRAC."""

    dn: Annotated[Texts, Field(alias="DN")] = ()
    """Names in its certificates, such as `/C=ch/O=cern/CN=ada`."""


class Host(Options):
    """`Registry/Hosts/<host>`. Source: DIRAC."""

    dn: Annotated[Texts, Field(alias="DN")] = ()
    """Names in its certificates."""
    properties: Texts = ()
    """TrustedHost, JobAdministrator and the like."""


class Registry(Options):
    """The whole section: VOs, owner groups, users and hosts, as configured."""

    vo: Annotated[Mapping[str, _VO], Field(alias="VO", default_factory=dict)]
    """The VOs."""
    groups: Annotated[Mapping[str, Group], Field(default_factory=dict)]
    """The groups."""
    users: Annotated[Mapping[str, User], Field(default_factory=dict)]
    """Users with certificates, for DIRAC's clients."""
    hosts: Annotated[Mapping[str, Host], Field(default_factory=dict)]
    """Hosts with certificates, for DIRAC's clients."""

    @cached_property
    def users_by_dn(self) -> Mapping[str, str]:
        """User by name in a certificate."""
        return {dn: name for name, user in self.users.items() for dn in user.dn}

    @cached_property
    def hosts_by_dn(self) -> Mapping[str, str]:
        """Host by name in a certificate."""
        return {dn: name for name, host in self.hosts.items() for dn in host.dn}

    @cached_property
    def vos_by_user(self) -> Mapping[str, frozenset[str]]:
        """The VOs whose groups a user is in, by user."""
        found: dict[str, set[str]] = {}
        for group in self.groups.values():
            if group.vo is not None:
                for user in group.users:
                    found.setdefault(user, set()).add(fold(group.vo))
        return {user: frozenset(vos) for user, vos in found.items()}

    def find_group(self, name: str, vo: str) -> Group:
        """An owner group; one that is not configured has the defaults and the given VO."""
        known = self.groups.get(name, Group())
        return known if known.vo is not None else known.model_copy(update={"vo": fold(vo)})

    def all_vos(self) -> frozenset[str]:
        """Every VO of the registry, lower case."""
        of_groups = (group.vo for group in self.groups.values() if group.vo is not None)
        return frozenset({*map(fold, self.vo), *of_groups})


def read_registry(section: Section, file: str) -> tuple[Registry, list[Problem]]:
    """The VOs and groups of the section, and its problems."""
    problems: list[Problem] = []
    for vo, entry in section.section("VO").entries.items():
        if not NAME.fullmatch(vo):
            message = f"{vo!r} is not a valid name of a VO, allowed are {NAME_ALLOWED}"
            problems.append(Problem(path=f"Registry/VO/{vo}", message=message, file=file, line=entry.line))
    # A VO or group without options has the defaults.
    levels = {name: section.section(name) for name in LEVELS}
    tree = {
        name: {each: {} for each in below.entries} | model_section(below) for name, below in levels.items()
    }
    try:
        return Registry.model_validate(tree), problems
    except ValidationError as error:
        problems += sections.list_problems(error, Registry, section, path="Registry", file=file)
        return Registry.model_validate({}), problems
