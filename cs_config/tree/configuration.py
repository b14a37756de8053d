"""One version of the configuration as an immutable value."""

from bisect import bisect_right
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from cs_config.errors import QueueNotFound
from cs_config.options.options import VoOptions
from cs_config.options.place_limits import MatchingDelay, RunningLimit
from cs_config.options.registry import Registry
from cs_config.source.sections import LineOrigins, Section, Tree, to_plain
from cs_config.tree import admission, expiry, glue, inheritance
from cs_config.tree.address import QueueAddress
from cs_config.tree.admission import Admission
from cs_config.tree.expiry import Dynamic
from cs_config.tree.inheritance import Level, Parameter
from cs_config.tree.throttle import Throttle
from requirements.errors import InvalidRequest, Problem, did_you_mean, format_count
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.values import Value, fold

Levels = tuple[Level, Level, Level]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Configuration:
    """A version of the configuration and everything derived from it.

    VOs are accepted in any case of letters. Derived values are cached. Methods about a queue raise `KeyError`
    if there is none of this address: check `knows` or `require` first.
    """

    version: int  #: 0: not from the database
    source: str  #: the original text
    file: str  #: file that it was made from, or `api`
    origins: LineOrigins  #: where its lines were first written
    author: str = ""  #: author of this version
    root: Section  #: the text as sections
    levels: Mapping[QueueAddress, Levels]  #: of every queue, from the site down
    nodes: Mapping[str, Level]  #: every site, CE and queue by its path, `Resources/Sites/…`
    throttles: Mapping[str, Throttle]  #: of the sites, CEs and queues that have one, by `Site/CE/Queue`
    limits: tuple[RunningLimit | MatchingDelay, ...]  #: by kind of job, that sites and CEs have themselves
    vos: frozenset[str]  #: every VO named anywhere, lower case
    default_operations: VoOptions  #: for callers without a VO
    vo_operations: Mapping[str, VoOptions]  #: of the VOs with options of their own
    registry: Registry
    os_compatibility: Mapping[str, tuple[str, ...]]  #: platform → platforms whose software its nodes can run
    dynamic: Dynamic  #: attributes that expire
    warnings: tuple[Problem, ...] = ()  #: allowed, but probably a mistake
    kept_values: frozenset[str] = frozenset()  #: paths of values that only earlier releases took
    expiries: int = 0  #: number of expiry moments that have passed
    written: "Configuration | None" = None  #: this version with expired values, if any have
    derived: dict[tuple[Hashable, ...], object] = field(
        default_factory=dict
    )  #: see `cs_config.cache.derived`
    _queues: dict[tuple[QueueAddress, str], "_EffectiveQueue"] = field(default_factory=dict)
    _aged: dict[int, "Configuration"] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Configuration {self.version} of {self.file}: {format_count(len(self.levels), 'queue')}>"

    def at_moment(self, now: datetime) -> "Configuration":
        """This version without the values that have expired at a time; free of cost while nothing expires."""
        if self.written is not None:
            return self.written.at_moment(now)
        passed = bisect_right(self.moments, now.timestamp()) if self.moments else 0
        return self._without_expired(passed) if passed else self

    def stored_as(self, version: int, author: str) -> "Configuration":
        """The same configuration as the version that was made of it."""
        own: dict[str, Any] = {name: {} for name in ("derived", "_queues", "_aged")}
        return replace(self, version=version, author=author, **own)

    @cached_property
    def moments(self) -> tuple[float, ...]:
        """The moments at which values expire, in seconds since the epoch, sorted."""
        return expiry.list_moments(self.nodes.values(), self.dynamic)

    def _without_expired(self, expiries: int) -> "Configuration":
        if (known := self._aged.get(expiries)) is not None:
            return known
        moment = self.moments[expiries - 1]
        nodes = {path: expiry.drop_expired(level, moment, self.dynamic) for path, level in self.nodes.items()}
        left: dict[str, Any] = {
            "nodes": nodes,
            "levels": {
                queue: tuple(nodes[level.path] for level in levels) for queue, levels in self.levels.items()
            },
            **{name: {} for name in ("derived", "_queues", "_aged")},
        }
        aged = replace(self, **left, expiries=expiries, written=self)
        self._aged.clear()  # time does not go back
        self._aged[expiries] = aged
        return aged

    @cached_property
    def tree(self) -> Tree:
        """The text as dicts, lists and scalars."""
        tree = to_plain(self.root)
        return tree if isinstance(tree, dict) else {}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return sha256(self.source.encode()).hexdigest()

    def has_section(self, name: str, section: Section) -> bool:
        """Whether a section at the top has this content: the same names and values, in the same order."""
        return repr(to_plain(self.root.section(name))) == repr(to_plain(section))

    @cached_property
    def addresses(self) -> tuple[QueueAddress, ...]:
        """All queues, sorted."""
        return tuple(sorted(self.levels, key=attrgetter("site", "ce", "queue")))

    @cached_property
    def sites(self) -> frozenset[str]:
        """The sites of the tree, including those without a queue."""
        return frozenset(self.root.section("Resources").section("Sites").entries)

    def knows(self, address: QueueAddress) -> bool:
        """Whether the queue exists, usable or not."""
        return address in self.levels

    def values_around(self, address: QueueAddress, vo: str) -> Mapping[str, Value]:
        """The values of a queue; of one that is gone what its CE, or else its site, states for a VO."""
        if self.knows(address):
            return self.values(address, vo)
        site = f"Resources/Sites/{address.site}"
        paths = (site, f"{site}/CEs/{address.ce}")
        levels = [self.nodes[path] for path in paths if path in self.nodes]
        return inheritance.parameter_values(inheritance.effective_parameters(levels, fold(vo)))

    def queues_at(self, site: str, ce: str = "", queue: str = "") -> Sequence[QueueAddress]:
        """The queue of this place if it exists, else all queues of its CE or site."""
        if queue:
            address = QueueAddress(site=site, ce=ce, queue=queue)
            return [address] if self.knows(address) else []
        return [each for each in self.addresses if each.site == site and ce in ("", each.ce)]

    def require(self, address: QueueAddress) -> QueueAddress:
        """The address of an existing queue; QueueNotFound suggests the most similar one."""
        if address not in self.levels:
            raise QueueNotFound(str(address), self.suggest(str(address)))
        return address

    def suggest(self, address: str) -> str | None:
        """The existing address that is most similar to one that does not exist."""
        if found := self._folded_names.get(fold(address)):
            return found
        try:
            site = QueueAddress.parse(address).site
        except InvalidRequest:
            site = ""
        at_site = [str(known) for known in self.addresses if fold(known.site) == fold(site)]
        return did_you_mean(address, at_site or self._folded_names.values())

    @cached_property
    def _folded_names(self) -> Mapping[str, str]:
        return {fold(str(address)): str(address) for address in self.addresses}

    def parameters(self, address: QueueAddress, vo: str) -> Mapping[str, Parameter]:
        """The effective parameters of a queue for a VO, each with its origin."""
        return self._effective(address, vo).parameters

    def values(self, address: QueueAddress, vo: str) -> Mapping[str, Value]:
        """The effective parameters of a queue for a VO, without those that differ between its nodes."""
        return self._effective(address, vo).values

    def node_attributes(self, address: QueueAddress, vo: str) -> NodeAttributes:
        """The declared attributes that differ between the nodes of a queue, for a VO."""
        return self._effective(address, vo).node_attributes

    def admission(self, address: QueueAddress, vo: str) -> Admission | None:
        """The admission rules of a queue for the jobs of a VO; None if it has none."""
        return self._effective(address, vo).admission if self.has_admission else None

    @cached_property
    def has_admission(self) -> bool:
        """Whether any queue has admission rules."""
        rules = {admission.REQUIREMENTS, *admission.DEFAULT_CHECKS}
        stated: set[str] = set()
        for level in self.nodes.values():
            for settings in (level.plain, *level.by_vo.values()):
                stated |= settings.keys()
                if (checks := settings.get(admission.CHECKS)) is not None:
                    rules |= {fold(str(name)) for name in inheritance.as_tuple(checks.value)}
        return not stated.isdisjoint(rules)

    def forwarding(self, address: QueueAddress, vo: str) -> SiteMapping | None:
        """The translation of node requirements for the queue's batch system; None if it has none."""
        parameters = self.parameters(address, vo).values()
        return next((each.forwarding for each in parameters if each.forwarding is not None), None)

    def ad(self, address: QueueAddress, vo: str) -> Mapping[str, Value]:
        """The ad of a queue for a VO's requirements: its values and the GLUE names derived from them.

        GLUE names derived from the address are included only if the VO's pools may distinguish queues by
        them; attributes that differ between nodes are not included.
        """
        alike = self.node_attributes(address, vo).without_these(self.values(address, vo))
        return glue.build_ad(alike, address if self.has_address(vo) else None)

    def has_address(self, vo: str) -> bool:
        """Whether the VO's jobs may select queues by address, so that no two queues are equal."""
        return self.vo_operations.get(fold(vo), self.default_operations).pools.by_address

    def expired(self, address: QueueAddress, vo: str) -> Mapping[str, Parameter]:
        """Parameters of a queue for a VO that have expired, by folded name."""
        levels = self.levels[address]
        if not any(level.expired for level in levels):
            return {}
        has = set(map(fold, self.parameters(address, vo)))
        gone = (each for level in levels for whose in ("", fold(vo)) for each in level.expired.get(whose, ()))
        return {fold(each.name): each for each in gone if fold(each.name) not in has}

    def usable(self, address: QueueAddress, vo: str) -> bool:
        """Whether the VO may use the queue now: enabled, and on the nearest VO list."""
        return inheritance.is_usable(self.levels[address], fold(vo))

    def enabled(self, address: QueueAddress, vo: str) -> bool:
        """Whether the queue is enabled, regardless of its VO lists."""
        return inheritance.is_enabled(self.levels[address], fold(vo))

    def list_runnable_platforms(self, platforms: Collection[str]) -> frozenset[str]:
        """The platforms, folded, whose software runs on nodes of these platforms.

        Source: DIRAC, which instead writes compatible platforms into the job before it waits.
        """
        names = frozenset(map(fold, platforms))
        runs = (each for name, each in self.os_compatibility.items() if fold(name) in names)
        return names.union(fold(name) for each in runs for name in each)

    def admits(self, address: QueueAddress, vo: str) -> bool:
        """Whether the VO may use the queue while it is enabled."""
        return inheritance.admits_vo(self.levels[address], fold(vo))

    def _effective(self, address: QueueAddress, vo: str) -> "_EffectiveQueue":
        """The queue for a VO; VOs without values of their own on its path share one."""
        folded, levels = fold(vo), self.levels[address]
        key = address, folded if any(folded in level.by_vo for level in levels) else ""
        if (found := self._queues.get(key)) is None:
            found = self._queues[key] = _EffectiveQueue(address, levels, key[1])
        return found


class _EffectiveQueue:
    """A queue for a VO: its effective parameters and what follows from them, each computed at first use."""

    def __init__(self, address: QueueAddress, levels: Levels, vo: str) -> None:
        self._address = address
        self._levels = levels
        self._vo = vo

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        return MappingProxyType(inheritance.effective_parameters(self._levels, self._vo))

    @cached_property
    def values(self) -> Mapping[str, Value]:
        return MappingProxyType(inheritance.parameter_values(self.parameters))

    @cached_property
    def node_attributes(self) -> NodeAttributes:
        return inheritance.list_attributes(self.parameters.values())

    @cached_property
    def admission(self) -> Admission | None:
        return admission.read_admission(glue.build_ad(self.values, self._address))
