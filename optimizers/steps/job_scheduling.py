"""Steps Requirements and JobScheduling: the SubmitPool and the requirement class of a job, for matching.

Sites come from the job's own list and its bans; those near its input data are found at matching. Cores are
stored as numbers and as the tags that DIRAC's pilots offer. CPU time is rounded up to segments, so that jobs
of nearly the same length share a task queue.

Source: RFC #7; DIRAC's JobScheduling optimizer and TaskQueueDB.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

from cs_config.options import keywords
from cs_config.tree.storage import find_common_sites
from optimizers.chain.chain import (
    ChainContext,
    Done,
    Failed,
    Hold,
    JobContext,
    Outcome,
    ResolvedPool,
    pure,
)
from optimizers.description.description import JobDescription
from requirements import canonical
from requirements.errors import did_you_mean, format_count
from requirements.requirement_class import RequirementClass, exclude_names, names_without_any
from requirements.values import fold
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE
from taskqueue.sites import closures
from taskqueue.task_queues.class_derivation import CLASSIFIED, derive_class


@pure
def resolve_requirements(candidate: JobContext, context: ChainContext) -> Outcome:
    """Compute the pool id from the requirements; the eligible queues only where the VO rejects jobs without.

    Source: RFC #7.
    """
    asked = candidate.description.requirements
    if asked is None:
        return Done(candidate=replace(candidate, pool=None))
    form = canonical.canonical(asked, candidate.vo)
    pool_id = canonical.identity(form)
    pool = ResolvedPool(pool_id=pool_id, requirements=canonical.pool_form(asked), canonical=form.decode())
    rejects = context.operations(candidate.vo).job_scheduling.reject_unmatchable
    if rejects and candidate.is_new and not context.find_queue_classes(pool, candidate.vo):
        return Failed(reason=NO_ELIGIBLE_QUEUE)
    return Done(candidate=replace(candidate, pool=pool))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSites:
    """Allowed and banned sites of one job."""

    sites: frozenset[str]  #: empty: all but the banned ones
    with_data: frozenset[str]  #: those of them near its input data; empty: it has none


def _refuse(reason: str, asked: JobDescription) -> Failed | Hold:
    """Fail a job for its sites; hold it if a default of the configuration takes part."""
    defaulted = [
        name for name in ("sites", "banned_sites") if getattr(asked, name) and not asked.states(name)
    ]
    if not defaulted:
        return Failed(reason=reason)
    names = ", ".join(keywords.BY_ATTRIBUTE[name].name for name in defaulted)
    return Hold(reason=f"{reason}, with the default of {names} (Operations/JobDescription)")


def choose_sites(candidate: JobContext, context: ChainContext) -> ChosenSites | Failed | Hold:
    """Combine all conditions on the sites of a job."""
    asked = candidate.description
    named, banned = (names_without_any(names) for names in (asked.sites, asked.banned_sites))
    if invalid := _invalid(named, candidate, context):
        return invalid
    sites = exclude_names(named, banned)
    if named and not sites:
        return _refuse("Impossible site requirement: every site of the job is banned by it", asked)
    with_data = frozenset[str]()
    if candidate.replicas:
        with_data = _keep_near_data(sites, banned, candidate, context)
        if not with_data:
            where = "its data are nowhere it may run (impossible_input_data_site)"
            return _refuse(f"Impossible InputData * Site requirements: {where}", asked)
    if closed := _refuse_closed(candidate, context):
        return closed
    return ChosenSites(sites=sites, with_data=with_data)


def _keep_near_data(
    sites: frozenset[str], banned: frozenset[str], candidate: JobContext, context: ChainContext
) -> frozenset[str]:
    """Those of the sites, of all if none is named, that are not banned and near all data of a job."""
    near = exclude_names(find_common_sites(context.config, candidate.replicas), banned)
    if not sites:
        return near
    folded = {fold(site) for site in near}
    return frozenset(site for site in sites if fold(site) in folded)


def _invalid(named: frozenset[str], candidate: JobContext, context: ChainContext) -> Failed | Hold | None:
    """Fail a new job with unknown sites, unless the configuration allows these."""
    if not candidate.is_new or context.operations(candidate.vo).job_scheduling.allow_invalid_sites:
        return None
    unknown = sorted(exclude_names(named, context.config.sites))
    if not unknown:
        return None
    suggestion = did_you_mean(unknown[0], context.config.sites)
    meant = f", did you mean {suggestion}?" if suggestion else ""
    return _refuse(f"unknown site {', '.join(unknown)}{meant}", candidate.description)


def _refuse_closed(candidate: JobContext, context: ChainContext) -> Failed | None:
    """Fail a new job all of whose sites are banned or closed to its VO, unless the VO lets it wait.

    Its sites are those that it names or that have its data, else all that it does not ban, if it bans any.
    Defaults do not count: what they exclude is no fault of the job, which waits like one that states nothing.
    """
    if not candidate.is_new or context.operations(candidate.vo).job_scheduling.allow_invalid_sites:
        return None
    asked = candidate.description
    named, banned = (
        names_without_any(getattr(asked, name)) if asked.states(name) else frozenset[str]()
        for name in ("sites", "banned_sites")
    )
    if not (named or banned or candidate.replicas):
        return None
    chosen = exclude_names(named, banned)
    if candidate.replicas:
        chosen = _keep_near_data(chosen, banned, candidate, context)
    sites = chosen or exclude_names(context.config.sites, banned)
    if any(_is_open(site, candidate, context) for site in sites):
        return None
    code = "impossible_input_data_site" if candidate.replicas else "all_sites_banned"
    which = ", ".join(sorted(chosen)) or "all but its BannedSites"
    return Failed(reason=f"{code}: {which}: none of them takes jobs of {candidate.vo} now")


def _is_open(site: str, candidate: JobContext, context: ChainContext) -> bool:
    """Whether a site takes jobs of the VO: it is not banned, and has a queue that is switched on for it."""
    config = context.config
    if fold(site) in context.banned_sites and not closures.is_test(candidate.description.job_type):
        return False
    known = site
    if site not in config.sites:
        known = next((each for each in config.sites if fold(each) == fold(site)), site)
    return any(config.usable(queue, candidate.vo) for queue in config.queues_at(known))


STEP_NAME = "JobScheduling"


@pure
def job_scheduling(candidate: JobContext, context: ChainContext) -> Outcome:
    """Delay a rescheduled job, then compute its sites and requirement class.

    A job with requirements but without a pool would run anywhere, so it is held: an optimizer is faulty.
    """
    if candidate.description.requirements is not None and candidate.pool is None:
        return Hold(reason="it has Requirements, but no optimizer has set a pool for them")
    delays = context.operations(candidate.vo).job_scheduling.reschedule_delays
    waits = candidate.reschedules and candidate.held_by != STEP_NAME and delays
    # 0: it goes on at once. A held job without a time of its own would be looked at much later.
    if seconds := delays[min(candidate.reschedules, len(delays)) - 1] if waits else 0:
        times = format_count(candidate.reschedules, "time")
        delay = timedelta(seconds=seconds)
        return Hold(reason=f"rescheduled {times}, continues after a delay", delay=delay)
    chosen = choose_sites(candidate, context)
    if isinstance(chosen, Failed | Hold):
        return chosen
    asked = derive_requirement_class(candidate, context)
    sites = chosen.with_data or chosen.sites
    # Displayed as the job's site until it is matched, in DIRAC's terms.
    site = "ANY" if not sites else next(iter(sites)) if len(sites) == 1 else "Multiple"
    return Done(candidate=replace(candidate, requirement_class=asked, site=site))


def derive_requirement_class(candidate: JobContext, context: ChainContext) -> RequirementClass:
    """Derive the class from what the description states, and from what the steps before have found."""
    asked = candidate.description
    stated = {name: getattr(asked, name) for name in CLASSIFIED if asked.states(name)}
    return derive_class(
        candidate.vo,
        stated,
        context.operations(candidate.vo),
        replicas=candidate.replicas,
        submit_pool=candidate.pool.pool_id if candidate.pool else None,
    )
