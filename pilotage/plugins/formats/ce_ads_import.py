"""Import of CE ads: the changes that they would make in the tree.

Attributes become parameters of the queue under their own names, beside our parameters derived from them by
the GLUE table. Only values that the queue does not have already are written. A queue is disabled if its ad
restricts it in a way that the tree cannot represent.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cs_config.editing import patch
from cs_config.editing.patch import Edit
from cs_config.editing.proposals import Proposal
from cs_config.formats import importers
from cs_config.formats.importers import ImportedConfiguration
from cs_config.source.diff import ABSENT
from cs_config.source.sections import as_list
from cs_config.tree import admission, glue, inheritance, parameters
from cs_config.tree.address import NAME, NAME_ALLOWED, QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import Parameter
from pilotage.plugins.formats import ce_ads
from pilotage.plugins.formats.ce_ads import EXPRESSIONS, CeAd
from requirements.classad import classad_files
from requirements.classad.classad_files import AdEntry
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import version_of
from requirements.classad.syntax_tree import ListOf, Node, SourceText
from requirements.errors import InvalidInput, Problem
from requirements.values import Value, as_value, fold

#: A number as people write it; programs also write 9.400000000000000E+00.
_DECIMAL: Final = re.compile(r"\d+\.\d+", re.ASCII)


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
class AdProposal(ImportedConfiguration):
    """A configuration with the ads merged into it, and the changes by queue."""

    changes: tuple[ParameterChange, ...]
    new: tuple[QueueAddress, ...]  #: queues that are not in the tree yet
    same: tuple[QueueAddress, ...]  #: queues without a change

    @property
    def text(self) -> str:
        """The whole configuration."""
        return self.proposal.after.source

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
    notes: list[Problem]  #: of all plans
    settings: dict[str, Value | None] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  #: attributes that are not imported
    lost: str = ""  #: a restriction that the tree cannot represent

    def leave_out(self, entry: AdEntry, message: str) -> None:
        self.note(message, entry)
        self.left_out.append(entry.name)

    def close_for_lost(self) -> None:
        """Disable the queue if an attribute that is not imported restricts it."""
        listed = (each.value for each in self.ad.attributes if fold(each.name) == admission.CHECKS)
        checks = frozenset(fold(str(name)) for value in listed for name in as_list(value))
        for name in self.left_out:
            if not self.lost and importers.is_restriction_of_ad(name, checks):
                self.lost = name
        if not self.lost:
            return
        for enabled in [each for each in self.settings if fold(each) == fold(importers.ENABLED)]:
            del self.settings[enabled]
        before = self.before.get(fold(importers.ENABLED))
        if before is None or before.value is not False:
            self.settings[importers.ENABLED] = False
        closed = f"closed, {importers.ENABLED}: false"
        self.note(f"{closed}, because {self.lost} restricts it and cannot be represented")

    def note_open(self, after: Configuration) -> None:
        """Note a new queue of GLUE 1 that is open to every VO since neither ad nor tree lists some."""
        if not self.is_new or not after.knows(self.queue):
            return
        is_of_glue = any(glue.is_glue(each.name) for each in self.ad.attributes)
        if is_of_glue and "vo" not in map(fold, after.parameters(self.queue, "")):
            self.note(f"open to every VO: the ad has no {glue.RULES}, and the tree no list VO")

    def note(self, message: str, entry: AdEntry | None = None) -> None:
        line = self.ad.line if entry is None else entry.line
        path = str(self.queue) if entry is None else f"{self.queue}/{entry.name}"
        self.notes.append(Problem(path=path, message=message, file=self.file, line=line))


def propose_ads(config: Configuration, files: Mapping[str, str], *, site: str | None = None) -> AdProposal:
    """Merge CE ads into the configuration, which has its expired values.

    Raises InvalidInput if an ad has no site, or two describe one queue; ConfigError if the result is wrong
    and no attribute is the cause.
    """
    notes: list[Problem] = []
    ads = {file: ce_ads.read_ads(text, file) for file, text in files.items()}
    planned = (_plan(config, ad, file, queue, notes) for ad, file, queue in _place_ads(config, ads, site))
    plans = [plan for plan in planned if plan is not None]
    tree: dict[str, Any] = {}
    places: dict[str, tuple[str, int]] = {}
    for plan in plans:
        _write_plan(config, plan, tree)
        places |= {f"{plan.queue.path}/{each.name}": (plan.file, each.line) for each in plan.ad.attributes}
    found = importers.merge_import(config, tree, notes, ", ".join(files), places)
    for plan in plans:
        plan.note_open(found.proposal.after)
    changes = tuple(_list_changes(found.proposal, [plan.queue for plan in plans]))
    touched = {change.queue for change in changes}
    return AdProposal(
        proposal=found.proposal,
        notes=tuple(notes),
        changes=changes,
        new=tuple(plan.queue for plan in plans if plan.is_new),
        same=tuple(plan.queue for plan in plans if not plan.is_new and plan.queue not in touched),
    )


def _write_plan(config: Configuration, plan: _Plan, tree: dict[str, Any]) -> None:
    section = tree
    for name in plan.queue.path.split("/"):
        section = section.setdefault(name, {})
    for name, value in plan.settings.items():
        section[name] = ABSENT if value is None else list(value) if isinstance(value, tuple) else value
    if plan.lost:
        importers.close(section, patch.find_entry(config.tree, plan.queue.path.split("/")))


def _list_changes(proposal: Proposal, queues: Iterable[QueueAddress]) -> Iterator[ParameterChange]:
    for queue in queues:
        old, new = (_own_values(config, queue) for config in (proposal.before, proposal.after))
        for folded in dict.fromkeys((*new, *old)):
            (_, before), (name, after) = old.get(folded, ("", None)), new.get(folded, ("", None))
            if repr(before) != repr(after):
                name = name or old[folded][0]
                yield ParameterChange(queue=queue, name=name, before=before, after=after)


def _own_values(config: Configuration, queue: QueueAddress) -> Mapping[str, tuple[str, Value]]:
    """Name and value of the parameters set at a queue itself, by folded name."""
    own = config.levels[queue][-1].plain if config.knows(queue) else {}
    return {folded: (each.name, each.value) for folded, each in own.items() if each is not None}


def _place_ads(
    config: Configuration, ads: Mapping[str, Sequence[CeAd]], site: str | None
) -> list[tuple[CeAd, str, QueueAddress]]:
    problems: list[Problem] = []
    found: dict[QueueAddress, tuple[CeAd, str]] = {}
    for file, of_file in ads.items():
        for ad in of_file:
            at = ad.site or site or _find_site(config, ad.ce)
            queue = _spell_address(config, (at, ad.ce, ad.queue))
            if fault := _site_fault(at) or _twice(found.get(queue)):
                problems.append(Problem(path=f"CE ad {ad.id}", message=fault, file=file, line=ad.line))
            else:
                found[queue] = (ad, file)
    if problems:
        raise InvalidInput(problems)
    return [(ad, file, queue) for queue, (ad, file) in found.items()]


def _spell_address(config: Configuration, names: tuple[str, str, str]) -> QueueAddress:
    """The address with existing names spelled as in the tree, where case makes no difference."""
    path = QueueAddress(site=names[0], ce=names[1], queue=names[2]).path
    [edit] = patch.respell_edits(config.tree, [Edit(names=tuple(path.split("/")), value=ABSENT)])
    site, ce, queue = edit.names[2::2]
    return QueueAddress(site=site, ce=ce, queue=queue)


def _find_site(config: Configuration, ce: str) -> str:
    sites = {address.site for address in config.addresses if address.ce == ce}
    return sites.pop() if len(sites) == 1 else ""


def _site_fault(site: str) -> str | None:
    if not site:
        return "it names no site (GlueSiteUniqueID), and the tree has no such CE: use --site SITE"
    return (
        None
        if NAME.fullmatch(site)
        else f"{site[:200]!r} is not a valid name of a site, allowed are {NAME_ALLOWED}"
    )


def _twice(other: tuple[CeAd, str] | None) -> str | None:
    return None if other is None else f"defined twice, the first time in {other[1]}:{other[0].line}"


def _plan(
    config: Configuration, ad: CeAd, file: str, queue: QueueAddress, notes: list[Problem]
) -> _Plan | None:
    known = config.knows(queue)
    own = config.levels[queue][-1].plain if known else {}
    plan = _Plan(queue=queue, ad=ad, file=file, is_new=not known, before=own, notes=notes)
    if (later := _later(ad, own)) is not None:
        plan.note(f"left out: the tree has newer values ({inheritance.UPDATE_TIME} {later})")
        return None
    effective = {fold(n): p for n, p in config.parameters(queue, "").items()} if known else {}
    carried = dict(_carry_over(config, plan, effective))
    for name, value in carried.items():
        compared = own if config.dynamic.has(fold(name)) or name in inheritance.TIMES else effective
        if not _has(compared.get(fold(name)), value):
            plan.settings[name] = value
    _remove_stale(config, plan, carried)
    _add_derived(config, plan, carried, effective)
    plan.close_for_lost()
    return plan


def _later(ad: CeAd, own: Mapping[str, Parameter | None]) -> Value | None:
    """The later time of the queue's current values, if they are newer than the ad."""
    has, says = own.get(inheritance.UPDATE_TIME), ad.times.get(inheritance.UPDATE_TIME)
    if has is None or says is None or not isinstance(has.value, int | float):
        return None
    return has.value if has.value > says else None


def _carry_over(
    config: Configuration, plan: _Plan, effective: Mapping[str, Parameter]
) -> Iterator[tuple[str, Value]]:
    """Attributes that a parameter can hold; expressions, nested lists and ads as their text."""
    yield from plan.ad.times.items()
    here = patch.find_entry(config.tree, plan.queue.path.split("/"))
    content = here.items() if isinstance(here, dict) else ()
    sections = {fold(name) for name, below in content if isinstance(below, dict)}
    held: dict[str, Value] = {}
    expressions: list[str] = []
    for entry in plan.ad.attributes:
        if entry.value is None:
            plan.leave_out(entry, "left out: undefined is the same as absent")
        elif entry.fault is not None:
            plan.leave_out(entry, f"not carried over: {entry.fault}")
        elif importers.names_vos(entry.name):
            plan.leave_out(entry, "not carried over: access is set here by the list VO or by access rules")
        elif fold(entry.name) in sections:
            plan.leave_out(entry, "not carried over: the tree has a section of this name")
        else:
            try:
                held[entry.name] = as_value(_read_versions(entry), entry.name)
            except InvalidInput:
                if _is_read_as_value(entry.name):
                    plan.leave_out(entry, "not carried over: an expression, where the system reads a value")
                else:
                    held[entry.name] = entry.text
                    expressions.append(entry.name)
    known = {name: each.value for name, each in effective.items()} | {fold(n): v for n, v in held.items()}
    known.pop(fold(EXPRESSIONS), None)
    if names := _list_expressions(plan, expressions, ce_ads.list_expressions(known)):
        yield EXPRESSIONS, names
    yield from held.items()


def _read_versions(entry: AdEntry) -> object:
    """The value of an attribute; the numbers of a version as texts, as they are written."""
    if not parameters.is_version(fold(entry.name)):
        return entry.value
    source = SourceText(text=entry.text, path=entry.name)
    node = read_expression(source)
    if isinstance(node, ListOf):
        return [_read_version(item, source) for item in node.items]
    return _read_version(node, source)


def _read_version(node: Node, source: SourceText) -> object:
    value, word = classad_files.value_of(node, source), source.text[node.start : node.end]
    return word if isinstance(value, float) and _DECIMAL.fullmatch(word) else version_of(value)


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
    config: Configuration, plan: _Plan, carried: Mapping[str, Value], effective: Mapping[str, Parameter]
) -> None:
    """Add our parameters that follow from static attributes; values written by hand stay."""
    carried_names = set(map(fold, carried))
    before = {p.name: p.value for p in plan.before.values() if p is not None}
    followed = glue.parameters_from_glue(_static(config, before))
    rules = next((name for name in carried if fold(name) == fold(glue.RULES)), None)
    if rules is not None and "vo" not in carried_names:
        if others := glue.other_rules(carried[rules]):
            plan.note(f"{rules}: {glue.explain_others(others)}")
        elif carried[rules] == ():
            plan.note(f"{rules}: an empty list closes it to all VOs, VO: []")
    for name, parameter in glue.unstated_numbers(_static(config, carried)).items():
        if fold(parameter) not in carried_names:
            plan.note(f"{name}: {carried[name]!r:.60} states no number: no {parameter} follows from it")
    for name, value in glue.parameters_from_glue(_static(config, carried)).items():
        has = effective.get(fold(name))
        if fold(name) in carried_names or _has(has, value):
            continue
        if has is None or _has(has, followed.get(name)):
            plan.settings[name] = value
        else:
            plan.note(f"{name} stays {has.value}, set at {has.level}; the ad implies {value}")


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
