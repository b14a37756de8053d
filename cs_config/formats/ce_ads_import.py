"""Import of CE ads: the changes that they would make in the tree.

Attributes become parameters of the queue under their own names, beside our parameters derived from them by
the GLUE table. Only values that the queue does not have already are written. A queue is disabled if its ad
restricts it in a way that the tree cannot represent.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats import ce_ads, restrictions
from cs_config.formats.ce_ads import EXPRESSIONS, CeAd
from cs_config.source import yaml_writer
from cs_config.tree import glue, inheritance, parameters
from cs_config.tree.address import NAME, NAME_ALLOWED, QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import Parameter
from requirements.classad.classad_files import AdEntry
from requirements.errors import InvalidInput, Problem
from requirements.values import Value, as_value, fold


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterChange:
    """A change of one parameter of a queue."""

    queue: QueueAddress
    name: str
    before: Value | None  #: value at the queue itself; None: not set
    after: Value | None  #: None: it is removed

    def as_json(self) -> dict[str, object]:
        """The change as JSON."""
        return {"path": f"{self.queue.path}/{self.name}", "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdProposal:
    """A configuration with the ads merged into it, and the changes."""

    text: str  #: the whole configuration
    changes: tuple[ParameterChange, ...]
    new: tuple[QueueAddress, ...]  #: queues that are not in the tree yet
    same: tuple[QueueAddress, ...]  #: queues without a change
    notes: tuple[Problem, ...]  #: values that could not be imported, and other remarks

    @property
    def changed(self) -> tuple[QueueAddress, ...]:
        """Queues of the tree with changed parameters."""
        return tuple(sorted({each.queue for each in self.changes} - set(self.new)))


@dataclass(slots=True, kw_only=True)
class _Plan:
    """Parameters that an ad sets at its queue; None removes a parameter."""

    queue: QueueAddress
    ad: CeAd
    file: str
    is_new: bool
    before: Mapping[str, Parameter | None]  #: parameters set at the queue itself
    settings: dict[str, Value | None] = field(default_factory=dict)
    lost: str = ""  #: a restriction that the tree cannot represent

    def close_for(self, name: str) -> Problem | None:
        """Disable the queue if an attribute that is not imported restricts it."""
        checks = frozenset(fold(str(each)) for entry in self.ad.attributes for each in _listed_checks(entry))
        if self.lost or not restrictions.is_restriction_of_ad(name, checks):
            return None
        self.lost = name
        for enabled in [each for each in self.settings if fold(each) == fold(restrictions.ENABLED)]:
            del self.settings[enabled]
        before = self.before.get(fold(restrictions.ENABLED))
        if before is None or before.value is not False:
            self.settings[restrictions.ENABLED] = False
        message = (
            f"closed, {restrictions.ENABLED}: false, because {name} restricts it and cannot be represented"
        )
        return self.note(message)

    @property
    def changes(self) -> Iterator[ParameterChange]:
        for name, after in self.settings.items():
            before = self.before.get(fold(name))
            yield ParameterChange(
                queue=self.queue, name=name, before=None if before is None else before.value, after=after
            )

    def note(self, message: str, entry: AdEntry | None = None) -> Problem:
        line = self.ad.line if entry is None else entry.line
        path = str(self.queue) if entry is None else f"{self.queue}/{entry.name}"
        return Problem(path=path, message=message, file=self.file, line=line)


def _listed_checks(entry: AdEntry) -> list[object]:
    if fold(entry.name) != "checks":
        return []
    return entry.value if isinstance(entry.value, list) else [entry.value]


def propose_ads(
    config: Configuration, ads: Mapping[str, Sequence[CeAd]], *, site: str | None = None
) -> AdProposal:
    """Merge CE ads, by file, into the configuration; `site` is that of new CEs whose ads name none.

    Raises InvalidInput if an ad has no site, or two describe one queue; ConfigError if the result is wrong
    and no attribute is the cause.
    """
    notes: list[Problem] = []
    plans = [
        plan
        for ad, file, queue in _place_ads(config, ads, site)
        if (plan := _plan(config, ad, file, queue, notes)) is not None
    ]
    text = _drop_refused(config, plans, notes)
    changes = tuple(change for plan in plans for change in plan.changes)
    touched = {change.queue for change in changes}
    return AdProposal(
        text=text if changes else config.source,
        changes=changes,
        new=tuple(plan.queue for plan in plans if plan.is_new),
        same=tuple(plan.queue for plan in plans if not plan.is_new and plan.queue not in touched),
        notes=tuple(notes),
    )


def _place_ads(
    config: Configuration, ads: Mapping[str, Sequence[CeAd]], site: str | None
) -> list[tuple[CeAd, str, QueueAddress]]:
    problems: list[Problem] = []
    found: dict[QueueAddress, tuple[CeAd, str]] = {}
    for file, of_file in ads.items():
        for ad in of_file:
            at = ad.site or site or _find_site(config, ad.ce)
            if fault := _site_fault(at) or _twice(found.get(QueueAddress(site=at, ce=ad.ce, queue=ad.queue))):
                problems.append(Problem(path=f"CE ad {ad.id}", message=fault, file=file, line=ad.line))
            else:
                found[QueueAddress(site=at, ce=ad.ce, queue=ad.queue)] = (ad, file)
    if problems:
        raise InvalidInput(problems)
    return [(ad, file, queue) for queue, (ad, file) in found.items()]


def _find_site(config: Configuration, ce: str) -> str:
    sites = {address.site for address in config.addresses if address.ce == ce}
    return sites.pop() if len(sites) == 1 else ""


def _site_fault(site: str) -> str | None:
    if not site:
        return "it names no site (GlueSiteUniqueID), and the tree has no such CE: use --site SITE"
    return (
        None if NAME.fullmatch(site) else f"{site[:200]!r} is no name of a site, allowed are {NAME_ALLOWED}"
    )


def _twice(other: tuple[CeAd, str] | None) -> str | None:
    return None if other is None else f"defined twice, the first time in {other[1]}:{other[0].line}"


def _plan(
    config: Configuration, ad: CeAd, file: str, queue: QueueAddress, notes: list[Problem]
) -> _Plan | None:
    known = config.knows(queue)
    own = config.levels[queue][-1].plain if known else {}
    plan = _Plan(queue=queue, ad=ad, file=file, is_new=not known, before=own)
    if (later := _later(ad, own)) is not None:
        notes.append(plan.note(f"left out: the tree has newer values ({inheritance.UPDATE_TIME} {later})"))
        return None
    effective = {fold(n): p for n, p in config.parameters(queue, "").items()} if known else {}
    left_out: list[str] = []
    carried = dict(_carry_over(plan, effective, notes, left_out))
    for name, value in carried.items():
        compared = own if config.dynamic.has(fold(name)) or name in inheritance.TIMES else effective
        if not _has(compared.get(fold(name)), value):
            plan.settings[name] = value
    _remove_stale(config, plan, carried)
    _add_derived(config, plan, carried, effective, notes)
    notes += (closed for name in left_out if (closed := plan.close_for(name)) is not None)
    return plan


def _later(ad: CeAd, own: Mapping[str, Parameter | None]) -> Value | None:
    """The later time of the queue's current values, if they are newer than the ad."""
    has, says = own.get(inheritance.UPDATE_TIME), ad.times.get(inheritance.UPDATE_TIME)
    if has is None or says is None or not isinstance(has.value, int | float):
        return None
    return has.value if has.value > says else None


def _carry_over(
    plan: _Plan, effective: Mapping[str, Parameter], notes: list[Problem], left_out: list[str]
) -> Iterator[tuple[str, Value]]:
    """Attributes that a parameter can hold; expressions, nested lists and ads as their text."""
    yield from plan.ad.times.items()
    held: dict[str, Value] = {}
    expressions: list[str] = []
    for entry in plan.ad.attributes:
        if entry.value is None:
            notes.append(plan.note("left out: undefined is the same as absent", entry))
            left_out.append(entry.name)
            continue
        if restrictions.names_vos(entry.name):
            message = "not carried over: access is set here by the list VO or by access rules"
            notes.append(plan.note(message, entry))
            left_out.append(entry.name)
            continue
        try:
            held[entry.name] = as_value(entry.value, entry.name)
        except InvalidInput:
            if _is_read_as_value(entry.name):
                message = "not carried over: an expression, where the system reads a value"
                notes.append(plan.note(message, entry))
                left_out.append(entry.name)
                continue
            held[entry.name] = entry.text
            expressions.append(entry.name)
    known = {name: each.value for name, each in effective.items()} | {fold(n): v for n, v in held.items()}
    known.pop(fold(EXPRESSIONS), None)
    if names := _list_expressions(plan, expressions, ce_ads.list_expressions(known)):
        yield EXPRESSIONS, names
    yield from held.items()


def _is_read_as_value(name: str) -> bool:
    return parameters.is_known(fold(name)) and fold(name) not in ce_ads.list_expressions({})


def _list_expressions(plan: _Plan, expressions: Sequence[str], others: Collection[str]) -> tuple[str, ...]:
    """Names of the queue's expressions, from the ad and from before, without those recognised by name."""
    before = plan.before.get(fold(EXPRESSIONS))
    in_ad = {fold(entry.name) for entry in plan.ad.attributes}
    named = map(str, inheritance.as_tuple(before.value) if before else ())
    kept = (name for name in named if fold(name) not in in_ad)
    new = (name for name in expressions if fold(name) not in others)
    return tuple(sorted((*kept, *new), key=fold))


def _remove_stale(config: Configuration, plan: _Plan, carried: Mapping[str, Value]) -> None:
    """Remove dynamic attributes that the ad no longer has: they would look as fresh as the others."""
    carried_names = set(map(fold, carried))
    if plan.before.get(fold(EXPRESSIONS)) is not None and fold(EXPRESSIONS) not in carried_names:
        plan.settings[EXPRESSIONS] = None
    for folded, parameter in plan.before.items():
        if parameter is not None and config.dynamic.has(folded) and folded not in carried_names:
            plan.settings[parameter.name] = None


def _add_derived(
    config: Configuration,
    plan: _Plan,
    carried: Mapping[str, Value],
    effective: Mapping[str, Parameter],
    notes: list[Problem],
) -> None:
    """Add our parameters that follow from static attributes; values written by hand stay."""
    carried_names = set(map(fold, carried))
    before = {p.name: p.value for p in plan.before.values() if p is not None}
    followed = glue.parameters_from_glue(_static(config, before))
    rules = next((name for name in carried if fold(name) == fold(glue.RULES)), None)
    if rules is not None and "vo" not in carried_names and (others := glue.other_rules(carried[rules])):
        notes.append(
            plan.note(f"{rules}: rules that are not of a whole VO admit no one: {', '.join(others):.200}")
        )
    for name, value in glue.parameters_from_glue(_static(config, carried)).items():
        has = effective.get(fold(name))
        if fold(name) in carried_names or _has(has, value):
            continue
        if has is None or _has(has, followed.get(name)):
            plan.settings[name] = value
        else:
            message = f"{name} stays {has.value}, set at {has.level}; the ad implies {value}"
            notes.append(plan.note(message))


def _static(config: Configuration, values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Attributes that do not change from ad to ad; access rules always count as static."""
    return {
        name: value
        for name, value in values.items()
        if fold(name) == fold(glue.RULES) or not config.dynamic.has(fold(name))
    }


def _has(parameter: Parameter | None, value: Value | None) -> bool:
    """Whether a parameter has exactly this value: True is not 1, 4000 is not 4000.0."""
    return parameter is not None and value is not None and repr(parameter.value) == repr(value)


def _drop_refused(config: Configuration, plans: Sequence[_Plan], notes: list[Problem]) -> str:
    """The text with the plans applied, without values that the tree does not allow."""
    while True:
        text = yaml_writer.edit_text(config.source, config.tree, _tree(config, plans, notes))
        errors = validate.check(text, config.file)
        if not errors:
            return text
        dropped = [problem for problem in errors if _drop(plans, problem, notes)]
        if len(dropped) < len(errors):
            raise ConfigError([problem for problem in errors if problem not in dropped])


def _drop(plans: Iterable[_Plan], problem: Problem, notes: list[Problem]) -> bool:
    """Drop an invalid value from its plan; False if no plan contains it."""
    for plan in plans:
        for name in plan.settings:
            if problem.path == f"{plan.queue.path}/{name}":
                _leave_out(plan, name, problem, notes)
                return True
    return False


def _leave_out(plan: _Plan, name: str, problem: Problem, notes: list[Problem]) -> None:
    del plan.settings[name]
    listed = plan.settings.get(EXPRESSIONS)
    if isinstance(listed, tuple):
        plan.settings[EXPRESSIONS] = tuple(each for each in listed if each != name) or None
    entry = next((each for each in plan.ad.attributes if each.name == name), None)
    meant = f", did you mean {problem.suggestion}?" if problem.suggestion else ""
    notes.append(plan.note(f"not carried over: {problem.message}{meant}", entry))
    is_meant = problem.suggestion is not None and restrictions.is_restriction(problem.suggestion)
    lost = problem.suggestion if is_meant and problem.suggestion else name
    if (closed := plan.close_for(lost)) is not None:
        notes.append(closed)


def _tree(config: Configuration, plans: Iterable[_Plan], notes: list[Problem]) -> dict[str, object]:
    tree = deepcopy(dict(config.tree))
    for plan in plans:
        section = _section(tree, plan.queue.path.split("/"))
        spelled = {fold(name): name for name in section}
        for name, value in list(plan.settings.items()):
            here = spelled.get(fold(name), name)
            if isinstance(section.get(here), dict):
                problem = Problem(path=name, message="the tree has a section of this name")
                _leave_out(plan, name, problem, notes)
            elif value is None:
                section.pop(here, None)
            else:
                section[here] = list(value) if isinstance(value, tuple) else value
        if plan.lost:
            restrictions.close(section)
    return tree


def _section(tree: dict[str, object], names: Iterable[str]) -> dict[str, object]:
    """The section at a path, created if missing."""
    here = tree
    for name in names:
        below = here.get(name)
        if not isinstance(below, dict):
            below = here[name] = {}
        here = below
    return here
