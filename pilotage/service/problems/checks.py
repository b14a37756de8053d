"""The table of checks, and the findings of all of them for one caller."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection

from pilotage.service.auth.callers import Role
from pilotage.service.problems import core, sites
from pilotage.service.problems.finding import CheckScope, Finding, Health

_OPERATOR: Final = frozenset({Role.OPERATOR})
_ADMINS: Final = _OPERATOR | {Role.VO_ADMIN, Role.SITE_ADMIN}
_ALL: Final = _ADMINS | {Role.USER}


class Pace(StrEnum):
    """How often a check is made."""

    OFTEN = "often"  #: by pages that refresh themselves
    SELDOM = "seldom"  #: by `doctor` only: it reads all that runs or waits


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationCheck:
    """A question about the installation."""

    question: str
    subjects: tuple[str, ...]  #: of its findings
    find: Callable[[Connection, CheckScope], Iterable[Finding]]
    roles: frozenset[Role]  #: who sees its findings, as far as they may see the places and VOs
    #: Of `deploy/prometheus/alerts.yaml`, its section of "When it breaks" has the cure; None: deliberate.
    alert: str | None
    pace: Pace = Pace.OFTEN


#: Alert of findings that have no alert of their own.
ANY_PROBLEM: Final = "PilotageProblem"

CHECKS: Final = (
    InstallationCheck(
        question="Is the process that answers ready to serve?",
        subjects=("service",),
        find=core.check_readiness,
        roles=_OPERATOR,
        alert="PilotageServiceAway",
    ),
    InstallationCheck(
        question="Can archives be stored?",
        subjects=("blobs",),
        find=core.check_storage,
        roles=_OPERATOR,
        alert=ANY_PROBLEM,
    ),
    InstallationCheck(
        question="Does the certificate of the process that answers expire soon?",
        subjects=("certificate",),
        find=core.check_certificate,
        roles=_OPERATOR,
        alert=ANY_PROBLEM,
    ),
    InstallationCheck(
        question="Is the replica of the database read?",
        subjects=("replica",),
        find=core.check_replica,
        roles=_OPERATOR,
        alert=ANY_PROBLEM,
    ),
    InstallationCheck(
        question="Is the newest configuration in use, with queues and without probable mistakes?",
        subjects=("configuration",),
        find=core.check_configuration,
        roles=_OPERATOR,
        alert=ANY_PROBLEM,
    ),
    InstallationCheck(
        question="Does each agent run, and for all VOs?",
        subjects=("agents",),
        find=core.check_agents,
        roles=_OPERATOR,
        alert="PilotageAgentAway",
    ),
    InstallationCheck(
        question="Has a job log in partitions some for the days to come?",
        subjects=("job log",),
        find=core.check_log_partitions,
        roles=_OPERATOR,
        alert=ANY_PROBLEM,
    ),
    InstallationCheck(
        question="Do temporary changes of the configuration end?",
        subjects=("temporary changes",),
        find=core.check_reverts,
        roles=_OPERATOR,
        alert=ANY_PROBLEM,
    ),
    InstallationCheck(
        question="Do the counters of limits agree with what runs?",
        subjects=("counters",),
        find=core.check_counters,
        roles=_OPERATOR,
        alert=ANY_PROBLEM,
        pace=Pace.SELDOM,
    ),
    InstallationCheck(
        question="Do jobs require values that are too long for any queue?",
        subjects=("requirements",),
        find=core.check_requirements,
        roles=_OPERATOR,
        alert="PilotagePoolsWithoutQueues",
        pace=Pace.SELDOM,
    ),
    InstallationCheck(
        question="Does Redis answer, and do workers listen?",
        subjects=("redis", "workers"),
        find=core.check_optimizers,
        roles=_OPERATOR,
        alert="PilotageOptimizersBehind",
    ),
    InstallationCheck(
        question="Do the optimizers take the jobs that are due?",
        subjects=("optimizers",),
        find=core.check_due_jobs,
        roles=_OPERATOR,
        alert=ANY_PROBLEM,
    ),
    InstallationCheck(
        question="Do directors and gateways report, without problems?",
        subjects=("directors and gateways",),
        find=sites.check_processes,
        roles=_ADMINS,
        alert="PilotageSiteProcessAway",
    ),
    InstallationCheck(
        question="Do nodes end pilots?",
        subjects=("directors and gateways",),
        find=sites.check_nodes,
        roles=_ADMINS,
        alert="PilotageNodesExcluded",
    ),
    InstallationCheck(
        question="Do pilots that run reach the service?",
        subjects=("silent pilots",),
        find=sites.check_silent_pilots,
        roles=_ADMINS,
        alert=ANY_PROBLEM,
    ),
    InstallationCheck(
        question="Is a queue eligible for each waiting job?",
        subjects=("eligible queues",),
        find=core.check_eligible_queues,
        roles=_ALL,
        alert="PilotagePoolsWithoutQueues",
    ),
    InstallationCheck(
        question="Where do more jobs of a VO fail than elsewhere, or all at once?",
        subjects=("failing sites", "black holes"),
        find=sites.check_ends,
        roles=_ALL,
        alert=ANY_PROBLEM,
    ),
    InstallationCheck(
        question="Which sites are closed?",
        subjects=("bans", "downtimes"),
        find=sites.check_closures,
        roles=_ALL,
        alert=None,
    ),
    InstallationCheck(
        question="Is every required advertisement fresh, and which throttles are closed?",
        subjects=("advertisements", "throttles"),
        find=sites.check_throttles,
        roles=_ALL,
        alert="PilotageCounterAway",
    ),
    InstallationCheck(
        question="Which limits are full while jobs wait?",
        subjects=("limits",),
        find=sites.check_limits,
        roles=_ALL,
        alert=None,
    ),
)


def find(conn: Connection, scope: CheckScope, *, with_seldom: bool = False) -> Iterator[Finding]:
    """The findings of the checks that concern the caller, good ones among them."""
    for check in CHECKS:
        if check.pace is Pace.OFTEN or with_seldom:
            caller = scope.caller if scope.caller.is_operator else scope.caller.within(check.roles)
            if caller is not None:
                yield from check.find(conn, scope.narrowed_to(caller))


def find_problems(conn: Connection, scope: CheckScope) -> list[Finding]:
    """What somebody should know of, the worst first."""
    found = [each for each in find(conn, scope) if each.health is not Health.GOOD]
    return sorted(found, key=lambda each: _WORST_FIRST.index(each.health))


_WORST_FIRST: Final = (Health.BAD, Health.WARNING, Health.NOTE)


def count_problems(conn: Connection, scope: CheckScope) -> Mapping[tuple[str, ...], int]:
    """The number of problems by subject, health and VO (none: an empty text), for metrics."""
    found = (each for each in find(conn, scope) if each.health.is_problem)
    return Counter[tuple[str, ...]](
        (each.subject, each.health.value, vo) for each in found for vo in each.vos or ("",)
    )
