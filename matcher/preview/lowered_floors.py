"""Floors of VOs at sites that a change lowers or takes away."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection

from cs_config.editing.proposals import Proposal
from matcher.explain import kept_for_floors
from matcher.limits import floors


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredFloor:
    """A floor of a VO at a site that the change lowers, or takes away."""

    site: str
    vo: str
    before: Annotated[str, Field(description="As text for people: 200 cores, or 30 %.")]
    after: Annotated[str | None, Field(description="Null: it has none.")]
    cores: Annotated[int, Field(description="Of its jobs that run there now.")]
    jobs: Annotated[int, Field(description="Its waiting jobs that fit there.")]


def list_lowered_floors(
    conn: Connection, proposal: Proposal, *, vos: Collection[str] | None, now: datetime
) -> Iterator[LoweredFloor]:
    """Those of these VOs (None: all), by site and VO; what is stated in another way is told as well.

    Floors of a site that goes are not: its queues and its work are told.
    """
    before, after = (floors.list_floors(each) for each in (proposal.before, proposal.after))
    lowered = {
        (site, vo)
        for (site, vo), floor in before.items()
        if (vos is None or vo in vos) and site in proposal.after.sites
        if (site, vo) not in after or not floor.is_within(after[site, vo])
    }
    sites = sorted({site for site, _ in lowered})
    fitting = kept_for_floors.FittingJobs(conn, proposal.before)
    standings = kept_for_floors.read_standings(conn, proposal.before, sites, now)
    for each in sorted(standings, key=lambda each: (each.site, each.vo)):
        key = (each.site, each.vo)
        if key in lowered:
            yield LoweredFloor(
                site=each.site,
                vo=each.vo,
                before=str(each.floor),
                after=str(after[key]) if key in after else None,
                cores=each.cores,
                jobs=fitting.count(each.vo, each.site),
            )
