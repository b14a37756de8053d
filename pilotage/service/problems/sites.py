"""Checks of sites: closures, advertisements, limits, directors, nodes, and how jobs end there."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from sqlalchemy import Connection

from cs_config.options.place_limits import ALL_SITES, RunningLimit
from cs_config.tree.address import QueueAddress
from matcher.limits import running_limits, throttle_standings
from matcher.limits.running_limits import PlaceRule
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Role
from pilotage.service.problems import finding
from pilotage.service.problems.finding import CheckScope, Finding, Health
from requirements.errors import format_count, format_time
from requirements.states import JobStatus
from taskqueue.accounting import depths, report, sums
from taskqueue.accounting.report import UsageQuery
from taskqueue.accounting.usage import Usage
from taskqueue.pilots import nodes, pilots
from taskqueue.sites import closures, processes, scopes
from taskqueue.sites.processes import SiteProcess


def _link_site(place: str) -> str:
    site = scopes.parse_site(place)
    return "/sites" if site == ALL_SITES else f"/sites/{site}"


def check_closures(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Look for bans, and downtimes that close a place now."""
    for each in closures.read_closures(conn, _concerned(scope), now=scope.now):
        subject = "downtimes" if each.is_downtime else "bans"
        until = f" until {format_time(each.until)}" if each.until else ""
        how = "is closed by a downtime" if each.is_downtime else "is banned"
        message = f"{each.place} {how}{until}: {each.reason}"
        remedy = "it ends by itself" if each.until else f"`pilotage site allow {each.place}` ends it"
        yield Finding(subject, Health.WARNING, message, remedy, _link_site(each.place))


#: What helps where nothing counts the jobs of a site.
_ADVERTISE: Final = "start its gateway, or `pilotage site advertise --watch` there"


def check_throttles(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Look for throttles without a fresh advertisement, and those that are closed while jobs wait."""
    sites = _concerned(scope)
    names = sorted(name for name in scope.config.throttles if scopes.parse_site(name) in sites)
    waiting = _WaitingJobs.read(conn, scope) if names else None
    for name, standing in throttle_standings.iterate_standings(conn, scope.config, names, scope.now):
        room = standing.room()
        is_closed = room.jobs is not None and room.jobs <= 0
        if standing.stale:
            effect = "and is closed" if is_closed else "and is open meanwhile"
            message = f"{name} has no fresh advertisement {effect}"
            yield Finding("advertisements", Health.WARNING, message, _ADVERTISE, _link_site(name))
        elif is_closed and waiting is not None:
            message = f"{name} is throttled ({room.why}){waiting.describe(name, None)}"
            yield Finding("throttles", Health.NOTE, message, link=_link_site(name))


def check_limits(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Look for running limits that are full while jobs wait that could run there."""
    sites, waiting = _concerned(scope), _WaitingJobs.read(conn, scope)
    names = sorted(
        name
        for name, rules in running_limits.rules_by_scope(scope.config).items()
        if scopes.parse_site(name) in {*sites, ALL_SITES}
        and any(isinstance(rule.limit, RunningLimit) for rule in rules)
        and waiting.count(name, None)
    )
    for name, conditions in running_limits.read_conditions(conn, scope.config, names, scope.now).items():
        for each in conditions:
            rule = each.rule
            is_seen = isinstance(rule.limit, RunningLimit) and rule.is_visible(scope.caller.visible_vos)
            if is_seen and each.full and waiting.count(name, rule):
                message = f"{name} {each.why}{waiting.describe(name, rule)}"
                yield Finding("limits", Health.NOTE, message, link=_link_site(name))


@dataclass(frozen=True, slots=True)
class _WaitingJobs:
    """Waiting jobs that sites could run, by VO, as in the last sample."""

    jobs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  #: by site and VO

    @classmethod
    def read(cls, conn: Connection, scope: CheckScope) -> "_WaitingJobs":
        since, own = scope.now - 2 * depths.INTERVAL, scope.caller.visible_vos
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for (vo, site), jobs in depths.read_largest(conn, since=since, most=_MOST_DEPTHS).items():
            if own is None or vo in own or scope.caller.looks_after(site):
                found[site][vo] = jobs
        return cls(found)

    def count(self, place: str, rule: PlaceRule | None) -> int:
        """Waiting jobs for a place that a rule is about; None: all."""
        site = scopes.parse_site(place)
        those = self.jobs.values() if site == ALL_SITES else [self.jobs.get(site, {})]
        return max(
            (sum(n for vo, n in jobs.items() if rule is None or rule.is_about(vo)) for jobs in those),
            default=0,
        )

    def describe(self, place: str, rule: PlaceRule | None) -> str:
        """Format the number as the end of a message; empty: none."""
        number = self.count(place, rule)
        return f", {format_count(number, 'job waits', 'jobs wait')} that could run there" if number else ""


#: Waiting jobs by VO and site that are read, the largest numbers first.
_MOST_DEPTHS = 5_000


def check_processes(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Check that directors and gateways report, no problems among it, and have slots for the jobs."""
    subject, now = "directors and gateways", scope.now
    found = visibility.visible_processes(scope.caller, processes.list_processes(conn))
    late = [each for each in found if each.is_overdue(now)]
    for each in late:
        hours = (now - each.seen_at).total_seconds() / 3600
        message = f"the {each.kind} {each.name} ({each.holder}) last reported for {each.vo} {hours:.1f} h ago"
        remedy = f"start it there, or `pilotage site forget {each.name}` if it was given up"
        yield Finding(subject, Health.WARNING, message, remedy, "/pilots")
    reports = [each for each in found if each not in late]
    for messages, further, remedy in (
        (_describe_slots(reports), "further slots are too small", "state larger ones in its file"),
        (_describe_problems(reports), "further problems", "its log there shows more"),
        (
            _describe_pauses(reports, now),
            "further queues are paused",
            "`pilotage pilots list` shows their ends",
        ),
    ):
        yield from finding.list_first(
            subject, Health.WARNING, list(messages), further, remedy, link="/pilots"
        )
    if found and not late:
        number = len({(each.kind, each.name) for each in found})
        yield Finding(subject, Health.GOOD, f"{number} at work")


def _describe_slots(reports: list[SiteProcess]) -> Iterator[str]:
    for each in reports:
        for slot in each.too_small:
            slots = f"the slots of the director {each.name} at {slot.queue} are too small"
            yield f"{slots} for {format_count(slot.jobs, 'job')} of {each.vo} that fit there: {slot.slot}"


def _describe_problems(reports: list[SiteProcess]) -> dict[str, None]:
    """Each problem once for all VOs of a process."""
    return dict.fromkeys(
        f"the {each.kind} {each.name} reports: {problem}" for each in reports for problem in each.problems
    )


def _describe_pauses(reports: list[SiteProcess], now: datetime) -> Iterator[str]:
    for each in reports:
        for state in each.list_paused(now):
            yield (
                f"the director {each.name} sends no pilots of {each.vo} to {state.queue} until "
                f"{state.paused_until:%H:%M} UTC: most of the last ones failed, or got no job: {state.reason}"
            )


def check_nodes(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Look for nodes that take no jobs, since pilots ended there because of their host."""
    excluded = [
        f"the node {each.node} of {each.site} takes no jobs of {each.vo} until {each.until:%H:%M} UTC: "
        f"{each.reason}"
        for each in nodes.list_excluded(conn, now=scope.now)
        if _may_count(scope, each.vo, each.site)
    ]
    subject, further = "directors and gateways", "further nodes are excluded"
    remedy = "repair it, then `pilotage site readmit SITE NODE`"
    yield from finding.list_first(subject, Health.WARNING, excluded, further, remedy, link="/sites")


def check_silent_pilots(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Look for pilots that run, as their directors report, and never reached the service."""
    minutes = pilots.SILENT_AFTER // timedelta(minutes=1)
    silent = [
        f"{format_count(number, 'pilot')} of {vo} at {queue} "
        f"{'runs' if number == 1 else 'run'} for more than {minutes} minutes and never reached the service"
        for (vo, queue), number in pilots.count_silent(conn, now=scope.now).items()
        if _may_count(scope, vo, queue.site)
    ]
    subject, further = "silent pilots", "further queues have such pilots"
    remedy = (
        "correct `pilot_url` of its director, or let its nodes reach that address; see `pilotage pilots list`"
    )
    yield from finding.list_first(subject, Health.WARNING, silent, further, remedy, link="/pilots")


#: Accounting sums that are read, and the time that they cover: this hour and the one before.
_MOST_SUMS = 50_000
_WINDOW = timedelta(hours=1)
#: A site fails if so many jobs of a VO failed there, this share, and so many times the share elsewhere.
_FEWEST_FAILED = 10
_SHARE_OF_SITE = 0.2
_TIMES_OTHERS = 2.0
#: A queue is a black hole if this share of so many jobs fails there within so many seconds.
_SHARE_OF_HOLE = 0.8
_SECONDS_OF_HOLE = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """How jobs of a VO ended at some place."""

    done: int = 0
    failed: int = 0
    failed_use: Usage = field(default_factory=Usage)

    def __add__(self, other: "_Ends") -> "_Ends":
        return _Ends(
            done=self.done + other.done,
            failed=self.failed + other.failed,
            failed_use=self.failed_use + other.failed_use,
        )

    @property
    def ended(self) -> int:
        return self.done + self.failed

    @property
    def share(self) -> float:
        """Share of failed jobs."""
        return self.failed / self.ended if self.ended else 0.0

    @property
    def is_hole(self) -> bool:
        """Whether jobs fail so soon that the place could take all that wait."""
        many = self.failed >= _FEWEST_FAILED and self.share >= _SHARE_OF_HOLE
        return many and self.failed_use.wall_seconds <= _SECONDS_OF_HOLE * self.failed_use.attempts

    def is_worse_than(self, others: "_Ends") -> bool:
        """Whether jobs fail here, and more often than at other sites."""
        many = self.failed >= _FEWEST_FAILED and self.share >= _SHARE_OF_SITE
        return many and (not others.ended or self.share >= _TIMES_OTHERS * others.share)

    def describe(self, vo: str) -> str:
        return f"{self.failed:,} of {format_count(self.ended, 'job')} of {vo} failed"


#: What is left to do at a queue with failing jobs that gets no more.
_CLOSED: Final = "it gets no jobs now: have its nodes mended before it does again"


def check_ends(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Look for queues where jobs of a VO fail at once, and other sites where more fail than elsewhere."""
    since = sums.truncate_to_hour(scope.now) - _WINDOW
    found = _read_ends(conn, scope, since)
    holes = {key: ends for key, ends in found.items() if ends.is_hole}
    # Without black holes: one can end so many jobs that all else is better than the average.
    by_site, by_vo = defaultdict[tuple[str, str], _Ends](_Ends), defaultdict[str, _Ends](_Ends)
    for (vo, site, *_), ends in found.items() - holes.items():
        by_site[vo, site] += ends
        by_vo[vo] += ends
    for (vo, site, ce, queue), ends in sorted(holes.items(), key=lambda each: each[0]):
        if _may_count(scope, vo, site):
            seconds = ends.failed_use.wall_seconds / max(1, ends.failed_use.attempts)
            message = f"at {site}/{ce}/{queue} {ends.describe(vo)}, after {seconds:.0f} s on average"
            address = QueueAddress(site=site, ce=ce, queue=queue)
            is_open = scope.config.knows(address) and scope.config.enabled(address, vo)
            remedy = f"`pilotage queue drain {address}` keeps jobs from it" if is_open else _CLOSED
            link = _link_failures(scope, vo, site, since)
            yield Finding("black holes", Health.WARNING, message, remedy, link)
    for (vo, site), ends in sorted(by_site.items(), key=lambda each: each[0]):
        others = _Ends(done=by_vo[vo].done - ends.done, failed=by_vo[vo].failed - ends.failed)
        if _may_count(scope, vo, site) and ends.is_worse_than(others):
            elsewhere = f"elsewhere {others.share:.0%}" if others.ended else "none ended elsewhere"
            message = f"at {site} {ends.describe(vo)} since {since:%H:%M} UTC, {elsewhere}"
            link = _link_failures(scope, vo, site, since)
            remedy = f"see how, and tell the site, or `pilotage site ban {site}`"
            yield Finding("failing sites", Health.WARNING, message, remedy, link)


def _read_ends(
    conn: Connection, scope: CheckScope, since: datetime
) -> Mapping[tuple[str, str, str, str], _Ends]:
    """How jobs ended by VO, site, CE and queue; none if there are too many rows."""
    query = UsageQuery(
        by=("vo", "site", "ce", "queue", "status"),
        bucket=None,
        since=since,
        until=scope.now + _WINDOW,
        which={"status": frozenset({JobStatus.DONE.value, JobStatus.FAILED.value})},
    )
    found = defaultdict[tuple[str, str, str, str], _Ends](_Ends)
    for (_, (vo, site, ce, queue, status)), use in (report.sum_usage(conn, query, _MOST_SUMS) or {}).items():
        has_failed = status == JobStatus.FAILED
        ends = _Ends(failed=use.jobs, failed_use=use) if has_failed else _Ends(done=use.jobs)
        if site:  # else the job ended before a pilot had it
            found[vo, site, ce, queue] += ends
    return found


def _link_failures(scope: CheckScope, vo: str, site: str, since: datetime) -> str:
    if not (scope.caller.is_operator or scope.caller.within({Role.VO_ADMIN, Role.SITE_ADMIN})):
        return ""  # a user's list has the own jobs only, this number those of the VO
    hours = (scope.now - since).total_seconds() / 3600
    return f"/failures?{urlencode({'vo': vo, 'site': site, 'hours': f'{hours:.3f}'})}"


def _concerned(scope: CheckScope) -> frozenset[str]:
    return visibility.concerned_sites(scope.caller, scope.config)


def _may_count(scope: CheckScope, vo: str, site: str) -> bool:
    own = visibility.vos_at(scope.caller, site)
    return own is None or vo in own
