"""What blocks a waiting job at this moment, as texts, the most important first.

Each check covers one cause. Everything that a claim must respect (limits, throttles, bans) needs a check
here that calls the claim's own code.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import itemgetter, or_

from sqlalchemy import Connection

from cs_config.options import job_tiers
from cs_config.options.operations import options_for
from cs_config.options.place_limits import ALL_SITES, RunningLimit
from cs_config.options.relax_rules import RELAX
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import as_tuple
from matcher import allotment, rules
from matcher.conditions import COLUMNS
from matcher.explain import (
    closed_places,
    kept_for_floors,
    pilot_supply,
    unseen_hardware,
    waiting_reason,
)
from matcher.explain.job_conditions import ClassCondition, JobDemand, list_conditions
from matcher.explain.queue_set import QueueSet
from matcher.limits import running_limits, throttle_standings, throttles, time_left
from matcher.limits.job_groups import JobView
from matcher.limits.running_limits import PlaceRule
from matcher.request import node_checks, queue_offer
from matcher.request.node_checks import NodeStanding
from matcher.seen_nodes import SeenNodes
from requirements import evaluator
from requirements.bitset import list_positions
from requirements.column_index import SingleItem
from requirements.errors import MOST_HINTS, did_you_mean, format_count, format_duration, format_time
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from requirements.states import UNMATCHED, JobStatus
from requirements.values import fold
from taskqueue.jobs import dependencies, descriptions, placeholders, waiting_ttl, withheld
from taskqueue.jobs.jobs import Job
from taskqueue.leases import expiry, uptime
from taskqueue.pilots import pilots
from taskqueue.sites import closures, processes, scopes
from taskqueue.sites.closures import Downtime
from taskqueue.task_queues import listing


def list_blocked_places(
    conn: Connection, config: Configuration, job: JobView, sites: Collection[str], now: datetime
) -> Iterator[tuple[str, str]]:
    """All scopes at these sites that block the job now, including enclosing ones, each with the reason."""
    here = frozenset(sites)
    if not closures.is_test(job.job_type):
        closed = closures.read_closures(conn, here, now=now)
        yield from ((each.place, closed_places.format_closure(each)) for each in closed)
    limited = [
        scope
        for scope, these in running_limits.rules_by_scope(config).items()
        if scopes.parse_site(scope) in {*here, ALL_SITES} and any(rule.concerns(job) for rule in these)
    ]
    for scope, conditions in running_limits.read_conditions(conn, config, limited, now).items():
        kept_out = (each for each in conditions if running_limits.keeps_out(each, job, job.cores))
        yield from ((scope, f"{scope} {each.why}") for each in kept_out)
    throttled = [scope for scope in config.throttles if scopes.parse_site(scope) in here]
    for scope, standing in throttle_standings.iterate_standings(conn, config, throttled, now):
        if why := standing.why_not(job, config):
            yield scope, f"{scope} is throttled ({why})"


def list_blocked_queues(
    conn: Connection,
    config: Configuration,
    job: JobView,
    asked: RequirementClass,
    survey: QueueSet,
    queues: int,
    now: datetime,
) -> Iterator[tuple[int, str]]:
    """Those of some queues that block the job now, as bit sets, each with the reason."""
    sites = [site for site, here in survey.sites.items() if here & queues]
    for scope, text in sorted(list_blocked_places(conn, config, job, sites, now), key=itemgetter(1)):
        if here := survey.within(scope) & queues:  # all queues for ALL_SITES
            yield here, text
    for downtime in closures.list_downtimes(conn, sites, now=now):
        here = survey.within(downtime.place) & queues
        if downtime.is_planned(now) and (late := _find_late(survey, asked, here, downtime.begins, now)):
            yield (
                late,
                f"{_format_downtime(downtime)}: the job asks for more time than is left until then",
            )


def _find_late(
    survey: QueueSet, asked: RequirementClass, queues: int, begins: datetime, now: datetime
) -> int:
    """The queues where the job has not the time that it asks for until a downtime begins."""
    late = 0
    for number in list_positions(queues):
        queue = survey.queues[number]
        left = time_left.bound(queue_offer.close(queue.offered), begins, now, queue.plain)
        if not time_left.is_enough(left, asked):
            late |= 1 << number
    return late


def closed_queues(
    conn: Connection,
    config: Configuration,
    job: JobView,
    asked: RequirementClass,
    survey: QueueSet,
    now: datetime,
) -> int:
    """The queues, as a bit set, that currently block the job."""
    blocked = list_blocked_queues(conn, config, job, asked, survey, survey.everything, now)
    return reduce(or_, (here for here, _ in blocked), 0)


def list_closures_at_queue(
    conn: Connection,
    config: Configuration,
    address: QueueAddress,
    now: datetime,
    *,
    vos: Collection[str] | None,
) -> Iterator[str]:
    """Closures, downtimes to come, limits and throttles at a queue, its CE and its site, as texts.

    `vos` selects whose own limits are shown beside the common ones; None: those of every VO.
    """
    if switch := closed_places.find_switch(config, address, ""):
        yield closed_places.describe_switch(conn, config, switch)
    line = (ALL_SITES, *scopes.list_enclosing(str(address)))
    closed = closures.read_closures(conn, [address.site], now=now)
    yield from (closed_places.format_closure(each) for each in closed if each.place in line)
    for downtime in closures.list_downtimes(conn, [address.site], now=now):
        if downtime.place in line and downtime.is_planned(now):
            yield f"{_format_downtime(downtime)}; only jobs that end before are sent there"
    limited = [scope for scope in line if scope in running_limits.rules_by_scope(config)]
    for scope, conditions in running_limits.read_conditions(conn, config, limited, now).items():
        yield from (f"{scope} {each.why}" for each in conditions if each.full and each.rule.is_visible(vos))
    throttled = [scope for scope in line if scope in config.throttles]
    for scope, standing in throttle_standings.iterate_standings(conn, config, throttled, now):
        room, policy = standing.room(), config.throttles[scope].policy
        if room.jobs is not None and room.jobs <= 0:
            yield f"{scope} is throttled ({room.why})"
        elif standing.depends_on_job:
            yield f"{scope} decides job by job ({throttles.REQUIREMENTS} of its throttle)"
        elif room.jobs is not None:
            yield f"{scope} may take {format_count(room.jobs, 'more job')} (throttle {policy})"


def _format_downtime(downtime: Downtime) -> str:
    begins, ends = format_time(downtime.begins), format_time(downtime.ends)
    return f"{downtime.place} has a downtime from {begins} until {ends} ({downtime.reason})"


#: Minor status of jobs that have eligible queues or no pool.
WAITS_FOR_PILOT = "Pilot Agent Submission"
#: Closed places that are listed.
_MOST_NAMED = 3
#: Age up to which a pilot's last request counts as recent.
LATELY = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSituation:
    """A job and the queues of its VO: the input of a `BlockerCheck`."""

    job: Job | None  #: None: a description that was not submitted
    job_view: JobView
    demand: JobDemand
    survey: QueueSet
    eligible: int  #: queues, as a bit set
    config: Configuration
    now: datetime


class HoldingText(str):
    """A text of a check whose cause alone keeps the job from every pilot now."""


class SwitchedOffText(HoldingText):
    """The same of queues that would be eligible, the only ones, and are switched off."""


BlockerCheck = Callable[[Connection, JobSituation], Iterable[str]]


def list_blockers(conn: Connection, situation: JobSituation) -> list[str]:
    """All causes that block the job now; empty if it runs or has ended."""
    job = situation.job
    if job is not None and job.status not in UNMATCHED:
        return list(_ended(job))
    return [text for check in BLOCKER_CHECKS for text in check(conn, situation)]


def _ended(job: Job) -> Iterator[str]:
    if job.status is JobStatus.STALLED:
        if job.minor_status != expiry.PILOT_ENDED:
            yield "its pilot is silent"
            return
        reason = f" ({job.application_status})" if job.application_status else ""
        yield f"its pilot has ended{reason}: it is rescheduled soon, or fails if that was done too often"
    elif job.status is JobStatus.FAILED:
        yield f"it has failed: {': '.join(filter(None, (job.minor_status, job.application_status)))}"


def _optimizers(conn: Connection, situation: JobSituation) -> Iterator[str]:
    job = situation.job
    if job is None or job.status is JobStatus.WAITING:
        return
    if job.status is not JobStatus.CHECKING:
        yield HoldingText("the optimizers have not processed it yet")
        return
    kept_for = withheld.find_reason(job)
    if kept_for == withheld.DEPENDENCIES:
        parents = dependencies.list_parents(conn, [job.job_id])[job.job_id]
        yield HoldingText(dependencies.describe_waiting(parents))
        return
    if kept_for is not None:
        since = format_time(job.updated_at)
        remedy = kept_for.remedy.format(job_id=job.job_id)
        yield HoldingText(f"{kept_for.minor.lower()} {job.application_status} since {since}: {remedy}")
        return
    until = f", goes on at {format_time(job.due_at)}" if job.due_at else ""
    yield HoldingText(f"held by the optimizers: {job.application_status or job.minor_status}{until}")


def _queues(_: Connection, situation: JobSituation) -> Iterator[str]:
    if not situation.survey.candidates:
        yield waiting_reason.describe_unusable(situation.survey)
    elif not situation.eligible:
        yield "no eligible queue: it becomes matchable when the configuration has one"
        if situation.job is not None and situation.job.minor_status == WAITS_FOR_PILOT:
            yield (
                f"its minor status, {WAITS_FOR_PILOT}, depends on its Requirements alone: other conditions "
                "are checked by pilots, which may be in queues that are missing in the configuration"
            )


def _places(_: Connection, situation: JobSituation) -> Iterator[str]:
    asked = situation.demand.asked
    sites, ces = situation.config.sites, situation.survey.ces
    for keyword, what, names, known in (
        ("Site", "site", asked.sites, sites),
        ("BannedSites", "site", asked.banned_sites, sites),
        ("GridCE", "CE", asked.grid_ces, ces),
    ):
        for name, meant in _unknown(names, known):
            hint = f", did you mean {meant}?" if meant else ""
            yield f"the configuration has no {what} {name} ({keyword}){hint}"


def _unknown(names: Collection[str], known: Collection[str]) -> Iterator[tuple[str, str | None]]:
    """Unknown names, at most `MOST_HINTS`, each with the likely spelling."""
    folded = rules.fold_names(known) if names else ()
    for name in sorted(name for name in names if fold(name) not in folded)[:MOST_HINTS]:
        yield name, did_you_mean(name, known)


def _platforms(_: Connection, situation: JobSituation) -> Iterator[str]:
    """Unknown platforms. A queue that states none accepts such a job all the same."""
    offered = situation.survey.distinct("Platform", situation.survey.everything)
    known = [str(name) for value, _ in offered for name in as_tuple(value)]
    for platform, others in situation.config.os_compatibility.items():
        known += [platform, *others]
    for name, meant in _unknown(situation.demand.asked.platforms, known):
        hint = f", did you mean {meant}?" if meant else "; leave out Platform if any will do"
        yield f"no queue offers the Platform {name}, and OSCompatibility does not list it{hint}"


def _switched_off(conn: Connection, situation: JobSituation) -> Iterator[str]:
    survey, demand = situation.survey, situation.demand
    off = 0 if situation.eligible else closed_places.find_switched_off(survey, demand)
    if off:
        yield SwitchedOffText(
            closed_places.describe_switched_off(conn, situation.config, survey, demand.asked.vo, off)
        )


def _undeclared(_: Connection, situation: JobSituation) -> Iterator[str]:
    """Conditions that only a pilot can check, because no queue states a value."""
    asked, eligible = situation.demand.asked, situation.eligible
    for field, asks, what in (
        ("platforms", bool(asked.platforms), f"Platform {', '.join(sorted(asked.platforms))}"),
        ("max_ram", bool(rules.needed_ram(asked)), f"{rules.needed_ram(asked)} MB of memory"),
    ):
        if asks and eligible and situation.survey.is_unstated(field, eligible):
            number = eligible.bit_count()
            open_ = format_count(number, "eligible one leaves", "eligible ones leave")
            yield f"no queue states that it has {what}; the {open_} it open"


def _job_managers(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """A job type that only job managers handle, where no gateway of an eligible queue advertises it."""
    asked, survey, eligible = situation.demand.asked, situation.survey, situation.eligible
    managed = options_for(situation.config, asked.vo).managed_types & rules.fold_names(asked.job_types)
    if not managed or not eligible:
        return
    sites = [site for site, queues in survey.sites.items() if queues & eligible]
    known = throttle_standings.list_handled_types(conn, situation.config, sites, situation.now)
    handled = [each for each in known if not each.stale and survey.within(each.scope) & eligible]
    if not any(managed & rules.fold_names(each.job_types) for each in handled):
        others = "; ".join(f"{', '.join(each.job_types)} at {each.scope}" for each in handled[:_MOST_NAMED])
        yield HoldingText(
            f"only a gateway takes jobs of type {', '.join(sorted(asked.job_types))}, and none at "
            f"the {format_count(eligible.bit_count(), 'eligible queue')} handles it now; "
            f"handled: {others or 'no type'}"
        )


def _nodes(_: Connection, situation: JobSituation) -> Iterator[str]:
    survey, asked = situation.survey, situation.demand.requirements
    if asked is None:
        return
    required = rules.fold_names(evaluator.parameters(asked, survey.declarations))
    undecided = [
        each
        for each in survey.members(survey.undecided(situation.demand) & situation.eligible)
        if rules.fold_names(each.nodes.names) & required - each.nodes.advertised
    ]
    if not undecided:
        return
    example = undecided[0]
    decision = survey.decide(asked, example)
    deciding = evaluator.list_undecided(decision, survey.declarations) - example.nodes.advertised
    names = ", ".join(
        name
        for name in evaluator.parameters(asked, survey.declarations)
        if name in example.nodes and fold(name) in deciding
    )
    where = _format_queues(len(undecided), situation.eligible.bit_count(), "decides", "decide")
    yield (
        f"{where} only at the node: a pilot there must measure what it requires of {names}, "
        f"such as at {example.address}"
    )


def _measured(_: Connection, situation: JobSituation) -> Iterator[str]:
    """Keywords that eligible queues leave to their nodes; what the others state fulfils them."""
    parts = [
        part
        for part in list_conditions(JobDemand(asked=situation.demand.asked))
        if isinstance(part, ClassCondition) and part.condition.name in queue_offer.LEFT_TO_NODES
    ]
    offers = Counter(each.offered for each in situation.survey.members(situation.eligible if parts else 0))
    left: dict[str, None] = {}
    queues = 0
    for offered, number in offers.items():
        stated = queue_offer.close(offered)
        unstated = [
            f"{part.demand.keyword} {part.wanted}"
            for part in parts
            if not part.condition.select(SingleItem(part.isolated, COLUMNS), stated)
        ]
        left |= dict.fromkeys(unstated)
        queues += number if unstated else 0
    if left:
        eligible, verbs = situation.eligible.bit_count(), ("leaves to its nodes", "leave to their nodes")
        where = _format_queues(queues, eligible, *verbs)
        yield f"{where}: {', '.join(left)}; what a pilot measures there decides"


def _seen_nodes(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """Queues whose last pilots lacked what the job needs of a node: directors send none for it."""
    survey, eligible = situation.survey, situation.eligible
    sites = {site for site, queues in survey.sites.items() if queues & eligible}
    seen = SeenNodes(conn, situation.config, sites, situation.now)
    asked = situation.demand.asked
    found = [
        (each.address, lack)
        for each in survey.members(eligible if seen else 0)
        if (lack := seen.find_lack(each.address, each.resource, asked)) is not None
    ]
    if not found:
        return
    texts = [
        f"{address}: {format_count(lack.pilots, 'pilot')} since {format_time(lack.since)}, the next "
        f"is sent for it after {format_time(lack.until)}"
        for address, lack in found[:_MOST_NAMED]
    ]
    if len(found) > _MOST_NAMED:
        texts.append(format_count(len(found) - _MOST_NAMED, "further queue"))
    where = _format_queues(len(found), eligible.bit_count())
    missing = ", ".join(dict.fromkeys(text for _, lack in found for text in lack.lacking))
    text = f"no pilot of {where} had {missing} lately"
    wrap = HoldingText if len(found) == eligible.bit_count() else str
    yield wrap(f"{text} ({'; '.join(texts)})")


def _hardware(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """Hardware that no pilot of an eligible site had lately."""
    if text := unseen_hardware.find_lacking(conn, situation.config, situation.demand, situation.now):
        yield text


def _advertised(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """Required attributes that sites advertise, with their values now, and whether these admit the job."""
    survey, asked, eligible = situation.survey, situation.demand.requirements, situation.eligible
    names = rules.fold_names(evaluator.parameters(asked, survey.declarations)) if asked else frozenset()
    queues = [each for each in survey.members(eligible) if each.nodes.advertised & names]
    if asked is None or not queues:
        return
    sites = {each.address.site for each in queues}
    stated = {each.scope: each for each in scopes.read_advertised(conn, sites)}
    found: dict[NodeStanding, list[str]] = {}
    for each in queues:
        here = each.nodes.advertised & names
        valid = throttle_standings.select_attributes(
            situation.config, stated, each.address, here, situation.now
        )
        facts = {name: valid[name].value if name in valid else None for name in here}
        standing = node_checks.decide(asked, each.values, each.nodes, facts, survey.declarations)
        values = ", ".join(
            f"{name} {valid[folded].describe(situation.now) if folded in valid else 'is not advertised'}"
            for name in each.nodes.names
            if (folded := fold(name)) in here
        )
        found.setdefault(min(standing, NodeStanding.OPEN), []).append(f"{each.address}: {values}")
    for standing, texts in sorted(found.items()):
        verb = "exclude" if standing is NodeStanding.REFUSED else "admit"
        others = f"; and {len(texts) - _MOST_NAMED} others" if len(texts) > _MOST_NAMED else ""
        where = _format_queues(len(texts), eligible.bit_count())
        yield (
            f"values that are advertised now {verb} it at {where} ({'; '.join(texts[:_MOST_NAMED])}{others})"
        )


def _directors(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """Directors at sites of eligible queues: whose pilots are too small, that are late or report problems.

    The problems themselves are for admins: they name files and commands of hosts.
    """
    survey, vo = situation.survey, situation.demand.asked.vo
    sites = {site for site, queues in survey.sites.items() if queues & situation.eligible}
    number = situation.job.task_queue_id if situation.job else None
    troubled = []
    for process in processes.list_processes(conn, [vo]) if sites else ():
        served = sites.intersection(process.sites)
        if process.kind != "director" or not served:
            continue
        director = f"the director {process.name}, which sends pilots to {min(served)},"
        if process.is_overdue(situation.now):
            troubled.append(f"{director} last reported at {format_time(process.seen_at)}")
            continue
        if process.problems:
            troubled.append(f"{director} reports problems: `pilotage site processes` shows them to admins")
        yield from (
            f"the pilots that the director {process.name} sends to {slot.queue} are too small for it: "
            f"its file states {slot.slot}"
            for slot in process.too_small
            if number in slot.task_queues
        )
    yield from troubled[:_MOST_NAMED]


def _pilot_supply(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """Pauses, used-up places and bad nodes at eligible queues, as directors report them."""
    survey, vo, eligible = situation.survey, situation.demand.asked.vo, situation.eligible
    sites = {site for site, queues in survey.sites.items() if queues & eligible}
    if sites:
        yield from pilot_supply.list_obstacles(
            conn, vo, sites, lambda queue: bool(survey.within(queue) & eligible), situation.now
        )


def _pilots(conn: Connection, situation: JobSituation) -> Iterator[str]:
    if not situation.eligible:
        return
    vo = situation.demand.asked.vo
    seen = pilots.count_by_queue(conn, vo, since=situation.now - LATELY)
    fits = [each for queue, each in seen.items() if situation.survey.within(str(queue)) & situation.eligible]
    asked, coming = sum(each.asked for each in fits), sum(each.coming for each in fits)
    total, minutes = sum(each.asked for each in seen.values()), LATELY // timedelta(minutes=1)
    if not asked:
        others = f"; {total} did from other queues" if total else ""
        yield HoldingText(
            f"no pilot of an eligible queue has requested work in the last {minutes} minutes{others}"
        )
    else:
        yield f"{_format_pilots(asked)} of eligible queues requested work in the last {minutes} minutes"
    if coming:
        one = "pilot for eligible queues waits in its batch system"
        yield format_count(coming, one, "pilots for eligible queues wait in their batch systems")


def _format_pilots(number: int) -> str:
    return format_count(number, "pilot") if number else "no pilots"


def count_recent_pilots(
    conn: Connection, address: QueueAddress, vos: Collection[str], now: datetime
) -> Iterator[str]:
    """The number of recent requests from a queue, one text per VO."""
    minutes, silent = LATELY // timedelta(minutes=1), pilots.count_silent_at(conn, address, now=now)
    for vo in sorted(vos):
        if number := silent.get(vo):
            one, many = "pilot of {} runs here and never reached", "pilots of {} run here and never reached"
            yield f"{format_count(number, one.format(vo), many.format(vo))} the service"
        seen = pilots.count_by_queue(conn, vo, since=now - LATELY).get(address)
        asked, coming = (seen.asked, seen.coming) if seen else (0, 0)
        more = f"; {coming} wait in the batch system" if coming else ""
        yield f"{_format_pilots(asked)} of {vo} requested jobs here in the last {minutes} minutes{more}"


def _closures(conn: Connection, situation: JobSituation) -> Iterator[str]:
    survey, eligible = situation.survey, situation.eligible
    job, asked, now = situation.job_view, situation.demand.asked, situation.now
    blocked = list(list_blocked_queues(conn, situation.config, job, asked, survey, eligible, now))
    closed = reduce(or_, (here for here, _ in blocked), 0)
    # Of as many queues what closes them now comes before a downtime that only will.
    texts = sorted(((here.bit_count(), text) for here, text in blocked), key=lambda each: -each[0])
    named = [text for _, text in texts[:_MOST_NAMED]]
    if closed != eligible:
        yield from named
    elif named and texts[0][0] < closed.bit_count():  # each leaves a queue open, all together none
        yield HoldingText("; ".join(named))
    else:
        yield from map(HoldingText, named)
    if len(texts) > _MOST_NAMED:
        others = format_count(len(texts) - _MOST_NAMED, "other place is", "other places are")
        yield f"{others} closed to it as well"
    if closed:
        queues = _format_queues(closed.bit_count(), eligible.bit_count(), "takes", "take")
        yield f"{queues} no job like it now"


def _narrow_limits(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """Limits on cores that exclude the job only with the cores that a free pilot there gives it."""
    survey, config, job = situation.survey, situation.config, situation.job_view
    queues = {
        scope: here
        for scope, these in running_limits.rules_by_scope(config).items()
        if (here := survey.within(scope) & situation.eligible)
        and any(_may_be_narrow(rule, job) for rule in these)
    }
    for scope, conditions in running_limits.read_conditions(conn, config, queues, situation.now).items():
        slots = {id(each.offered): each.offered for each in survey.members(queues[scope])}.values()
        beside, alone = (_count_given(situation.demand.asked, slots, is_only=each) for each in (False, True))
        for each in conditions:
            if each.excludes(job.cores) or not each.rule.concerns(job):
                continue
            if each.excludes(beside):
                yield f"{scope} {each.why}: not enough for the {beside} cores that it needs there"
            elif each.excludes(alone):
                who = "a free pilot there that asks for one job"
                yield f"{scope} {each.why}: not enough for the {alone} cores that {who} gives it"


def _floors(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """Sites where jobs of other VOs come first until these have what is theirs."""
    sites = [site for site, here in situation.survey.sites.items() if here & situation.eligible]
    vo = situation.demand.asked.vo
    found = list(kept_for_floors.list_kept_sites(conn, situation.config, vo, sites, situation.now))
    wrap = HoldingText if {each.site for each in found if each.is_closed}.issuperset(sites) else str
    yield from (wrap(each.why) for each in found[:_MOST_NAMED])


def _may_be_narrow(rule: PlaceRule, job: JobView) -> bool:
    return isinstance(rule.limit, RunningLimit) and rule.limit.cores is not None and rule.concerns(job)


def _count_given(asked: RequirementClass, slots: Iterable[Resource], *, is_only: bool) -> int:
    """The most cores that a claim gives a job of one of these free slots, alone or beside others."""
    return max(allotment.build_core_counter(each, is_only=is_only)(asked) for each in slots)


def _format_queues(number: int, eligible: int, one: str = "", many: str = "") -> str:
    """So many of the eligible queues, with what one or several of them do."""
    verb = one if number == 1 else many
    if number < eligible:
        return f"{number} of the {eligible} eligible queues {verb}".rstrip()
    return (
        f"the only eligible queue {one}" if eligible == 1 else f"all {eligible} eligible queues {many}"
    ).rstrip()


def _type_order(_: Connection, situation: JobSituation) -> Iterator[str]:
    """Types whose jobs come first, whatever their shares."""
    asked = situation.demand.asked
    tiers = options_for(situation.config, asked.vo).job_scheduling.job_priorities
    earlier = list(map(str, tiers[: job_tiers.find_tier(tiers, asked.job_types) - 1]))
    if earlier:
        others = f" and {len(earlier) - MOST_HINTS} more tiers" if len(earlier) > MOST_HINTS else ""
        whose = f"its type, {min(asked.job_types)}, is" if asked.job_types else "it has no type and is"
        yield (
            f"{whose} in {job_tiers.describe_tier(tiers, asked.job_types)}: of what a pilot can run, jobs of "
            f"{', '.join(earlier[:MOST_HINTS])}{others} come before it (JobPriorities)"
        )


def _queue_position(conn: Connection, situation: JobSituation) -> Iterator[str]:
    place = listing.read_position(conn, situation.job.job_id) if situation.job else None
    if place is not None and place.before:
        verb = "is" if place.before == 1 else "are"
        yield f"{place.before} of the {place.waiting} jobs of its task queue {verb} handed out before it"


def _waiting_ttl(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """When a waiting job fails if nothing matches it until then, or why it does not."""
    job, now = situation.job, situation.now
    of_vo = options_for(situation.config, situation.demand.asked.vo).job_scheduling.waiting_ttl
    if job is None or job.task_queue_id is None or job.status is not JobStatus.WAITING or not of_vo:
        return
    ttl = waiting_ttl.read_ttl(conn, job.job_id, of_vo)
    times = waiting_ttl.measure(conn, {job.job_id: job.task_queue_id}, uptime.read(conn), now=now)
    left = ttl - times[job.job_id].seconds
    if fault := waiting_reason.find_fault(conn, situation.survey, situation.demand, now):
        passes = "is over, but it does not fail for this" if left <= 0 else "does not pass now"
        yield f"its time to wait (WaitingTTL, {ttl:g} s) {passes}: {fault}"
        return
    at = format_time(now + timedelta(seconds=max(0.0, left)))
    yield f"fails at {at} if nothing fits until then (WaitingTTL, {ttl:g} s)"


def _relaxing(conn: Connection, situation: JobSituation) -> Iterator[str]:
    """What a waiting job gives up if nothing matches it until then, by rules of its own or of its VO."""
    job, now = situation.job, situation.now
    if job is None or job.task_queue_id is None or job.status is not JobStatus.WAITING:
        return
    stored = descriptions.read_stored(conn, [job.job_id])[job.job_id]
    body = placeholders.fill_placeholders(stored.body, stored.parameters)
    rules = options_for(situation.config, job.vo).job_description.list_relax_rules(body)
    if not rules:
        return
    times = waiting_ttl.measure(conn, {job.job_id: job.task_queue_id}, uptime.read(conn), now=now)
    waited = times[job.job_id].seconds
    whose = "Relax" if RELAX in body else f"Relax of {job.vo}, as far as it asks for it"
    if due := [rule.changes for rule in rules if rule.after <= waited]:
        yield f"asks for less at once, if a queue could run it then: {', '.join(due)} ({whose})"
    if later := [rule for rule in rules if rule.after > waited]:
        left = format_duration(later[0].after - waited)
        yield f"in {left}, if nothing fits until then, it asks for less: {later[0].changes} ({whose})"


#: Checks, in the order of their texts.
BLOCKER_CHECKS: tuple[BlockerCheck, ...] = (
    *(_optimizers, _switched_off, _places, _queues, _platforms, _undeclared, _job_managers),
    *(
        _closures,
        _narrow_limits,
        _floors,
        _advertised,
        _nodes,
        _measured,
        _seen_nodes,
        _hardware,
        _directors,
        _pilot_supply,
        _pilots,
    ),
    *(_type_order, _queue_position, _relaxing, _waiting_ttl),
)
