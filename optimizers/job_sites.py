"""Where a job may run: its own list, what it bans, where its data are, where its pool has queues."""

from collections.abc import Iterable
from dataclasses import dataclass

from optimizers.candidate import Candidate
from optimizers.context import Context
from optimizers.outcome import Failed
from requirements.suggestion import did_you_mean
from requirements.values import fold


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSites:
    """Sites of one job."""

    sites: frozenset[str]  #: empty: any but the banned ones
    banned: frozenset[str]  #: empty where `sites` says it all

    @property
    def shown(self) -> str:
        """What stands as the job's site until it has one, in DIRAC's words."""
        return "ANY" if not self.sites else next(iter(self.sites)) if len(self.sites) == 1 else "Multiple"


def choose(candidate: Candidate, context: Context) -> ChosenSites | Failed:
    """The sites that are left when everything is taken into account."""
    asked = candidate.description
    named = frozenset() if says_any(asked.sites) else frozenset(asked.sites)
    banned = frozenset() if says_any(asked.banned_sites) else frozenset(asked.banned_sites)
    if invalid := _invalid(named, candidate, context):
        return invalid
    sites = _without(named, banned)
    if named and not sites:
        return Failed(reason="Impossible site requirement: every site of the job is banned by it")
    if candidate.data_sites is not None:
        sites = (
            _common(sites, _without(candidate.data_sites, banned))
            if sites
            else _without(candidate.data_sites, banned)
        )
        if not sites:
            return Failed(reason="Impossible InputData * Site requirements: its data are nowhere it may run")
    sites = _narrowed(sites, banned, candidate, context)
    return ChosenSites(sites=sites, banned=frozenset() if sites else banned)


def says_any(names: Iterable[str]) -> bool:
    """Whether a list has the word for no condition at all."""
    return any(fold(name) == "any" for name in names)


def _without(sites: frozenset[str], banned: frozenset[str]) -> frozenset[str]:
    folded = {fold(site) for site in banned}
    return frozenset(site for site in sites if fold(site) not in folded)


def _common(sites: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    folded = {fold(site) for site in others}
    return frozenset(site for site in sites if fold(site) in folded)


def _invalid(named: frozenset[str], candidate: Candidate, context: Context) -> Failed | None:
    """Sites that the configuration does not know, where it insists on knowing them."""
    if context.operations(candidate.vo).job_scheduling.allow_invalid_sites:
        return None
    unknown = sorted(_without(named, context.config.sites))
    if not unknown:
        return None
    suggestion = did_you_mean(unknown[0], context.config.sites)
    meant = f", did you mean {suggestion}?" if suggestion else ""
    return Failed(reason=f"unknown site {', '.join(unknown)}{meant}")


def _narrowed(
    sites: frozenset[str], banned: frozenset[str], candidate: Candidate, context: Context
) -> frozenset[str]:
    """The sites that own an eligible queue, where `NarrowSites` is on and there are such sites."""
    if candidate.pool is None or not context.operations(candidate.vo).job_scheduling.narrow_sites:
        return sites
    eligible = _without(candidate.pool.sites, banned)
    return (_common(sites, eligible) if sites else eligible) or sites
