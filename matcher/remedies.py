"""What a job may state instead, so that queues fulfil a condition that they fail: a function a condition.

A remedy has its effort, its text for people, and the changed statements by attribute of a description.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matcher import rules
from requirements import requirement_class
from requirements.diracx import tag_expression
from requirements.diracx.specification import OPPORTUNISTIC
from requirements.errors import MOST_HINTS, did_you_mean
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from requirements.values import fold, format_value, normal_number

#: How much a change demands of the author of a job: it is listed the earlier, the less. A nearer value is
#: between `NEARER` and `OTHER`, by the share of the old value that is given up.
SPELLING, NEARER, OTHER, LEFT_OUT, BY_OTHERS = 0.0, 1.0, 2.0, 3.0, 4.0
#: Less than to give up half of a value, or two together: the site meant the queue for such jobs.
SWITCHED_ON = NEARER + 0.5


class RefusingQueue(Protocol):
    """What remedies read of a queue."""

    @property
    def site(self) -> str:
        """The name of its site."""

    @property
    def ce(self) -> str:
        """The name of its CE."""

    @property
    def offered(self) -> Resource:
        """A pilot's offer there."""

    def list_texts(self, parameter: str) -> list[str]:
        """The values of a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A condition that some queues fail."""

    asked: RequirementClass  #: a class with this condition only
    #: What the job states or has by default, by attribute of a description.
    job: Any
    winnable: Sequence[RefusingQueue]  #: failing queues to win
    queues: Sequence[RefusingQueue]  #: all
    cpu_segments: Sequence[int]  #: CPU times of task queues, in seconds
    spell: Callable[[str], str]  #: the keyword of an attribute


#: Effort, text, and changes of what a job states by attribute; None: the keyword is left out.
Remedies = Iterator[tuple[float, str, dict[str, Any]]]
#: Finds the remedies of a condition, the smallest change first.
Remedy = Callable[[Refusal], Remedies]


def nearness(old: object, new: object) -> float:
    """The effort of another number in place of an old one."""
    if not isinstance(old, int | float) or not isinstance(new, int | float) or not old:
        return OTHER
    return NEARER + min(1.0, abs(old - new) / max(abs(old), abs(new)))


def smaller_steps(values: Iterable[float | None]) -> list[float]:
    """Up to three of the offered values: the highest, the median and the lowest, each winning more queues."""
    ordered = sorted((value for value in values if value is not None), reverse=True)
    return list(dict.fromkeys([*ordered[:1], *ordered[len(ordered) // 2 :][:1], *ordered[-1:]]))


def do_nothing(_: Refusal) -> Remedies:
    """Nothing that a job states helps: replicas are made elsewhere, another type makes it another job."""
    yield from ()


def lower_cpu_time(refusal: Refusal) -> Remedies:
    """Lower it to what queues offer, in steps of task queues."""
    wanted = refusal.asked.cpu_time
    fitting = (
        [each for each in refusal.cpu_segments if each <= queue.offered.cpu_time]
        for queue in refusal.winnable
    )
    for time in smaller_steps(max(times) for times in fitting if times and max(times) < wanted):
        yield nearness(wanted, time), f"lower CPUTime from {wanted} to {time} s", {"cpu_time": int(time)}


def lower_number(attribute: str) -> Remedy:
    """Lower a number to what queues offer; job, class and resource have it under the same name."""

    def find(refusal: Refusal) -> Remedies:
        wanted = getattr(refusal.asked, attribute)
        for number in smaller_steps(getattr(queue.offered, attribute) for queue in refusal.winnable):
            text = _lower(refusal, attribute, wanted, number)
            yield nearness(wanted, number), text, {attribute: normal_number(number)}

    return find


def lower_text(attribute: str, parameter: str) -> Remedy:
    """Lower a text that is compared by a number, such as a version, to what queues state."""

    def find(refusal: Refusal) -> Remedies:
        wanted = getattr(refusal.asked, attribute)
        offered = {getattr(queue.offered, attribute): queue for queue in refusal.winnable}
        for number in smaller_steps(offered):
            for text in offered[number].list_texts(parameter):
                yield OTHER, f"lower {refusal.spell(attribute)} from {wanted} to {text}", {attribute: text}

    return find


def shorten_tag_expression(refusal: Refusal) -> Remedies:
    """Leave out what queues do not fulfil of it, or all of it."""
    attribute = "tag_expression"
    keyword = refusal.spell(attribute)
    shorter = Counter(_keep_fulfilled(refusal.asked.tag_expression, queue) for queue in refusal.winnable)
    for text, _count in shorter.most_common(2):
        if text:
            yield OTHER, f"write {keyword} {text}", {attribute: text}
    yield LEFT_OUT, f"leave out {keyword}", {attribute: None}


def consent_to_gpus(refusal: Refusal) -> Remedies:
    """Allow as many GPUs as queues have; a job that requires none names the tag of queues that consent."""
    asked = refusal.asked
    if asked.gpus:
        largest = max((queue.offered.gpus for queue in refusal.winnable), default=0)
        if largest > (asked.gpus_max or 0):
            yield nearness(asked.gpus_max, largest), f"raise MaxGPUs to {largest}", {"gpus_max": largest}
        return
    open_ = any(OPPORTUNISTIC in (queue.offered.literal_tags or ()) for queue in refusal.winnable)
    if open_:
        given = refusal.job.tag_expression
        text = tag_expression.normalise(f"({given}) & {OPPORTUNISTIC}" if given else OPPORTUNISTIC)
        changes = {"gpus": 0, "gpus_max": None, "tag_expression": text}
        yield OTHER, f"let it run beside idle GPUs: state GPUs 0 and TagExpression {text}", changes


def _keep_fulfilled(expression: str, queue: RefusingQueue) -> str:
    tags, open_tags = queue.offered.literal_tags or frozenset(), queue.offered.open_tags
    return tag_expression.keep_operands(expression, lambda each: rules.may_hold(each, tags, open_tags))


def lower_ram(refusal: Refusal) -> Remedies:
    """Lower the memory, and that for each core, to what queues offer."""
    asked = refusal.asked
    needed, cores = rules.needed_ram(asked), asked.processors_min
    offered = (queue.offered.max_ram for queue in refusal.winnable)
    for ram in smaller_steps(most for most in offered if (most or 0) < needed):
        per_core = min(asked.min_ram_per_core, int(ram) // cores)
        own = min(asked.min_ram, int(ram) - per_core * cores)
        numbers = {
            "min_ram_mb": (asked.min_ram, own),
            "min_ram_per_core_mb": (asked.min_ram_per_core, per_core),
        }
        lowered = {name: (old, new) for name, (old, new) in numbers.items() if new < old}
        text = " and ".join(f"{_lower(refusal, name, old, new)} MB" for name, (old, new) in lowered.items())
        yield nearness(needed, ram), text, {name: new for name, (_, new) in lowered.items()}


def _lower(refusal: Refusal, attribute: str, old: float, new: float) -> str:
    return f"lower {refusal.spell(attribute)} from {format_value(old)} to {format_value(new)}"


#: The numbers of cores that a job may state.
_NUMBERS = ("processors", "min_processors", "max_processors")


def lower_processors(refusal: Refusal) -> Remedies:
    """Lower all that requires more cores than a queue has: numbers, tags, and a whole node."""
    job = refusal.job
    for number in smaller_steps(queue.offered.processors or 1 for queue in refusal.winnable):
        cores = int(number)
        # A larger maximum is no obstacle, unless it makes the job one of several cores.
        above = [name for name in _NUMBERS if (getattr(job, name) or 0) > cores]
        lowered = [name for name in above if cores == 1 or name != "max_processors"]
        tags = sorted(tag for tag in job.tags if requirement_class.count_tagged_cores(tag) > cores)
        texts = [_lower(refusal, name, getattr(job, name), cores) for name in lowered]
        texts += [f"leave out the tag {tag}" for tag in tags]
        edits: dict[str, Any] = dict.fromkeys(lowered, cores)
        if cores == 1 and job.min_processors and not (job.max_processors or job.processors):
            edits["max_processors"] = 1
            texts.append("state MaxNumberOfProcessors 1")
        if tags:
            edits["tags"] = frozenset(job.tags).difference(tags)
        effort = nearness(max((getattr(job, name) for name in lowered), default=0), cores)
        if edits:
            yield effort, ", and ".join(texts), edits
        for more, text, whole in do_without_whole_node(refusal):
            tagged = {"tags": whole["tags"].difference(tags)}
            yield effort + more if edits else more, ", and ".join((*texts, text)), edits | whole | tagged


def do_without_whole_node(refusal: Refusal) -> Remedies:
    """Share the node."""
    job = refusal.job
    tags = frozenset(tag for tag in job.tags if fold(tag) != "wholenode")
    if job.whole_node or len(tags) < len(job.tags):
        yield LEFT_OUT, "do without WholeNode", {"whole_node": False, "tags": tags}


def leave_out_tag(refusal: Refusal) -> Remedies:
    """Spell the tag like one that is offered, or leave it out."""
    [tag] = refusal.asked.tags
    rest = frozenset(refusal.job.tags) - {tag}
    if similar := did_you_mean(tag, [name for queue in refusal.queues for name in queue.list_texts("Tag")]):
        yield SPELLING, f"write the tag {similar} instead of {tag}", {"tags": rest | {similar}}
    yield LEFT_OUT, f"leave out the tag {tag}", {"tags": rest}


def leave_out_image(refusal: Refusal) -> Remedies:
    """Run without a container."""
    yield LEFT_OUT, f"leave out {refusal.spell('image')}", {"image": None}


def add_required_tag(refusal: Refusal) -> Remedies:
    """Add the tags that most of the queues require."""
    have = rules.fold_names(refusal.asked.tags)
    wanted = Counter(frozenset(queue.offered.required_tags - have) for queue in refusal.winnable)
    spelled = {fold(text): text for queue in refusal.winnable for text in queue.list_texts("RequiredTag")}
    for missing, _count in wanted.most_common(2):
        if names := frozenset(spelled.get(each, each) for each in missing):
            edits = {"tags": names.union(refusal.job.tags)}
            yield OTHER, f"add the tag {', '.join(sorted(names))}", edits


def lift_site_bans(refusal: Refusal) -> Remedies:
    """Take sites off the list of banned ones."""
    yield from _lift_bans(refusal.job, refusal.winnable)


def _lift_bans(job: Any, winnable: Iterable[RefusingQueue]) -> Remedies:
    banned = {fold(name): name for name in reversed(list(job.banned_sites))}
    sites = Counter(site for queue in winnable if (site := fold(queue.site)) in banned)
    for site, _count in sites.most_common(3):
        left = frozenset(name for name in job.banned_sites if fold(name) != site)
        yield OTHER, f"take {banned[site]} off BannedSites", {"banned_sites": left}
    if len(sites) > 1:
        yield LEFT_OUT, "leave out BannedSites", {"banned_sites": None}


def name_other_sites(refusal: Refusal) -> Remedies:
    """Name other sites; those that the job bans have to be taken off its list, too."""
    job, winnable = refusal.job, refusal.winnable
    banned = rules.fold_names(frozenset(job.banned_sites))
    named = rules.fold_names(requirement_class.names_without_any(job.sites))
    yield from _lift_bans(job, [queue for queue in winnable if fold(queue.site) in named])
    for effort, text, edits in _name_sites(refusal):
        new = edits["sites"]
        allowed = None if new is None else rules.fold_names(new)
        won = [queue for queue in winnable if allowed is None or fold(queue.site) in allowed]
        if not won or any(fold(queue.site) not in banned for queue in won):
            yield effort, text, edits
            continue
        for more, further, lifted in _lift_bans(job, won):
            yield effort + more, f"{text}, and {further}", edits | lifted


def name_others(attribute: str, offers: Callable[[RefusingQueue], Iterable[str]]) -> Remedy:
    """Spell the names of a list like those of queues, allow one more, or leave the list out."""

    def find(refusal: Refusal) -> Remedies:
        keyword = refusal.spell(attribute)
        names = requirement_class.names_without_any(getattr(refusal.job, attribute))
        known = list(dict.fromkeys(name for queue in refusal.queues for name in offers(queue)))
        folded = rules.fold_names(known)
        for name in sorted(names)[:MOST_HINTS]:
            similar = None if fold(name) in folded else did_you_mean(name, known)
            if similar:
                text = f"write {keyword} {similar} instead of {name}"
                yield SPELLING, text, {attribute: names - {name} | {similar}}
        offered = Counter(name for queue in refusal.winnable for name in offers(queue))
        for other, _count in offered.most_common(1):
            yield OTHER, f"allow {keyword} {other} as well", {attribute: names | {other}}
        yield LEFT_OUT, f"leave out {keyword}", {attribute: None}

    return find


_name_sites = name_others("sites", lambda queue: [queue.site])
