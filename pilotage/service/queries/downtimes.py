"""Downtimes of sites and CEs: plan, list and remove them; import those that a feed states."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

from pydantic import AwareDatetime, BaseModel, Field
from sqlalchemy import Connection

from cs_config.errors import SiteNotFound
from cs_config.options import bounds
from cs_config.tree.configuration import Configuration
from pilotage.service.auth import audit, visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models import FilledText, StrictInput
from pilotage.service.queries.sites import DowntimeAnswer
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, Problem, did_you_mean
from requirements.values import fold
from taskqueue.db import database
from taskqueue.errors import DowntimeNotFound
from taskqueue.sites import closures, scopes
from taskqueue.sites.closures import Downtime, Severity

#: Downtimes of one feed.
_MOST: Final = 20_000
#: Downtimes of one site that are not over: each request for work there looks at them.
MOST_OF_SITE: Final = 1_000
#: Characters of a reason that a feed states; the rest is left out.
_REASON: Final = 2_000
#: Notes of one import.
_NOTES: Final = 100
#: Service types of CEs in GOCDB and in OSG's topology, folded.
_CE_TYPES: Final = frozenset(
    {
        *("ce", "cream-ce", "arc-ce", "org.nordugrid.arex", "org.opensciencegrid.htcondorce", "htcondor-ce"),
        *("org.nordugrid.arc-ce", "lcg-ce", "osg-ce", "globus-gram5", "unicore6.targetsystemfactory"),
    }
)


class NewDowntime(StrictInput):
    """A downtime to plan."""

    place: str = Field(min_length=1, max_length=255, description="`Site` or `Site/CE`.")
    begins: AwareDatetime
    ends: AwareDatetime
    severity: Severity = Field(default=Severity.OUTAGE, description="WARNING is only shown.")
    reason: FilledText = Field(max_length=1000, description="Shown to users.")


class StatedDowntime(StrictInput):
    """A downtime as a feed states it."""

    source_id: str = Field(min_length=1, max_length=200, description="Its id in the feed.")
    host: str = Field(min_length=1, max_length=255, description="The host, by which its CE is found.")
    service: str = Field(default="", max_length=200, description="Type of the service there.")
    begins: AwareDatetime
    ends: AwareDatetime
    severity: Severity
    reason: str = Field(description=f"Shown to users: the first {_REASON:,} characters.")


class Feed(StrictInput):
    """All downtimes that a feed states now."""

    source: Annotated[FilledText, Field(max_length=100, description="Name of the feed.")]
    downtimes: list[StatedDowntime] = Field(max_length=_MOST)
    unreadable: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default=[],
        max_length=_MOST,
        description="Ids of entries that could not be read: what is stored of them stays.",
    )


class FeedImport(BaseModel):
    """What an import changed."""

    added: int
    changed: int
    removed: int
    unchanged: int
    notes: list[str] = Field(description="What could not be imported.")


def list_downtimes(parts: Services, site: str | None) -> list[DowntimeAnswer]:
    """The downtimes of a site (None: of all) that are not over, the earliest first."""
    config, now = parts.live.current, parts.clock()
    if site is not None:
        visibility.require_known(config, site)
    with database.reading(parts.engine) as conn:
        found = closures.list_downtimes(conn, config.sites if site is None else [site], now=now)
    return [DowntimeAnswer.from_stored(each, now) for each in found]


def plan(parts: Services, caller: Caller, new: NewDowntime) -> DowntimeAnswer:
    """Plan a downtime of a site or a CE; only for those who look after the site.

    One that is planned by hand already gets the reason, and no second one is stored.
    """
    config, now = parts.live.current, parts.clock()
    visibility.require_site(caller, config, scopes.parse_site(new.place))
    places = {each for each in visibility.list_scopes(config) if each.count("/") <= 1}
    if new.place not in places:
        raise SiteNotFound(new.place, did_you_mean(new.place, places))
    if problem := _find_problem(new.begins, new.ends, now):
        raise InvalidRequest([problem])
    downtime = Downtime(**new.model_dump(), author=caller.author, at=now)
    with database.writing(parts.engine) as conn:
        closures.lock_downtimes(conn)
        stored = closures.plan_downtime(conn, downtime)
        _require_bounded(conn, {scopes.parse_site(new.place)}, now)
    audit.done(caller, "plan downtime", site=new.place, reason=new.reason, until=new.ends.isoformat())
    return DowntimeAnswer.from_stored(stored, now)


def remove(parts: Services, caller: Caller, downtime_id: int) -> None:
    """Remove a downtime, which opens its place at once; errors as for `plan`, and `DowntimeNotFound`."""
    with database.writing(parts.engine) as conn:
        downtime = closures.find_downtime(conn, downtime_id)
        if downtime is None:
            raise DowntimeNotFound(str(downtime_id))
        visibility.require_site(caller, parts.live.current, scopes.parse_site(downtime.place))
        closures.remove_downtimes(conn, [downtime_id])
    audit.done(caller, "remove downtime", site=downtime.place)


def import_feed(parts: Services, caller: Caller, feed: Feed) -> FeedImport:
    """Import what a feed states now of the caller's sites; what it states no more is deleted."""
    config, now = parts.live.current, parts.clock()
    sites = config.sites if caller.is_operator else caller.every_site & config.sites
    known = _find_ces(config)
    notes: dict[str, None] = {}
    taken, unreadable = Taken(), set(feed.unreadable)
    # Each once: one may concern all CEs of a site, so those that are stated again cost as much again.
    stated = {(each.source_id, fold(each.host)): each for each in feed.downtimes if _concerns_ce(each, now)}
    for each in stated.values():
        places = known.get(fold(each.host), ())
        if not places:
            notes[f"{each.host}: the configuration has no such CE"] = None
        elif problem := _find_problem(each.begins, each.ends, None):
            notes[f"{each.source_id}: {problem.path} {problem.message}: nothing is changed of it"] = None
            unreadable.add(each.source_id)
        else:
            of_caller = [place for place in places if scopes.parse_site(place) in sites]
            for downtime in _read_stated(feed.source, each, of_caller, caller, now):
                taken.add(downtime)
    with database.writing(parts.engine) as conn:
        closures.lock_downtimes(conn)
        change = closures.replace_feed(
            conn, feed.source, taken.downtimes.values(), sites, unreadable=unreadable
        )
        _require_bounded(conn, taken.of_sites, now)
    audit.done(caller, "import downtimes", source=feed.source, added=change.added, removed=change.removed)
    same = len(taken.downtimes) - change.added - change.changed
    return FeedImport(
        added=change.added,
        changed=change.changed,
        removed=change.removed,
        unchanged=same,
        notes=[*list(notes)[:_NOTES], *([f"and {left:,} more"] if (left := len(notes) - _NOTES) > 0 else ())],
    )


def _concerns_ce(stated: StatedDowntime, now: datetime) -> bool:
    """Whether it is about a CE, and not over."""
    return fold(stated.service) in _CE_TYPES and stated.ends > now


@dataclass(slots=True)
class Taken:
    """The downtimes of a feed that an import stores, none of which is over: of each site a bounded number."""

    downtimes: dict[tuple[str | None, str], Downtime] = field(default_factory=dict)  #: by their keys
    of_sites: Counter[str] = field(default_factory=Counter)  #: their numbers

    def add(self, downtime: Downtime) -> None:
        """Add one; InvalidRequest if its site has too many, before they take memory."""
        if downtime.key not in self.downtimes:
            site = scopes.parse_site(downtime.place)
            self.of_sites[site] += 1
            _check_number(site, self.of_sites[site])
        self.downtimes[downtime.key] = downtime


def _read_stated(
    source: str, stated: StatedDowntime, places: Collection[str], caller: Caller, now: datetime
) -> Iterator[Downtime]:
    """A stated downtime at each place of its host."""
    values = stated.model_dump(exclude={"host", "service"}) | {"reason": stated.reason[:_REASON]}
    for place in places:
        yield Downtime(**values, place=place, source=source, author=caller.author, at=now)


def _require_bounded(conn: Connection, sites: Collection[str], now: datetime) -> None:
    """Raise InvalidRequest if one of these sites has too many downtimes that are not over."""
    found = closures.list_downtimes(conn, sites, now=now)
    for site, number in Counter(scopes.parse_site(each.place) for each in found).items():
        _check_number(site, number)


def _check_number(site: str, number: int) -> None:
    """Raise InvalidRequest if so many downtimes that are not over are too many for a site."""
    if number > MOST_OF_SITE:
        message = f"{site} would have {number:,} that are not over, allowed are {MOST_OF_SITE:,}"
        raise InvalidRequest([Problem(path="downtimes", message=message)])


def _find_problem(begins: datetime, ends: datetime, now: datetime | None) -> Problem | None:
    if begins.timestamp() < 0:
        return Problem(path="begins", message=f"{begins} is before 1970")
    if ends <= begins:
        return Problem(path="ends", message=f"{ends} is not after the begin, {begins}")
    if now is not None and ends <= now:
        return Problem(path="ends", message=f"{ends} is over, it is {now.replace(microsecond=0)}")
    if ends.timestamp() > bounds.MOMENT:
        return Problem(path="ends", message=f"{ends} is too late")
    return None


def _find_ces(config: Configuration) -> dict[str, Sequence[str]]:
    """The CEs of the tree, as `Site/CE`, by folded name, and by its part before a port."""
    found = defaultdict[str, dict[str, None]](dict)
    for address in config.addresses:
        name = fold(address.ce)
        for each in (name, name.partition(":")[0]):
            found[each][f"{address.site}/{address.ce}"] = None
    return {name: tuple(places) for name, places in found.items()}
