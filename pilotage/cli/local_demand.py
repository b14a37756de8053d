"""Which local pilots there is work for: what the matcher would give to each queue of the site."""

import logging
from dataclasses import dataclass

from cs_config.configuration import QueueAddress
from matcher import presented
from matcher.requests import Caller
from pilotage.fabric.pilot import facts, offer
from pilotage.fabric.pilot.settings import Place, Slot, Wishes
from pilotage.service.parts import Parts
from requirements.errors import PilotageError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Post:
    """Where a pilot may be needed: the jobs of a VO at a queue."""

    vo: str
    address: QueueAddress


def posts(parts: Parts, site: str) -> list[Post]:
    """The posts of a site for which jobs wait now."""
    config = parts.live.current
    usable = [
        Post(vo=vo, address=address)
        for address in config.addresses
        if address.site == site
        for vo in sorted(config.vos)
        if config.usable(address, vo)
    ]
    return [post for post in usable if _has_work(parts, post)]


def _has_work(parts: Parts, post: Post) -> bool:
    """Ask as the pilot itself would; where that is refused, no pilot is needed, and the others go on."""
    address = post.address
    place = Place(site=address.site, ce=address.ce, queue=address.queue)
    values = {
        name: list(each.value) if isinstance(each.value, tuple) else each.value
        for name, each in parts.live.current.parameters(address, post.vo).items()
    }
    offered = offer.make(place, Slot(), Wishes(), values, facts.measured())
    caller = Caller(subject="pilotage up", vos=frozenset({post.vo}), queue=address)
    try:
        request = presented.read(offered.at(0))
        return bool(parts.matcher.get_matching_task_queues(request, caller))
    except PilotageError as error:
        log.warning("no local pilots for the VO %s at %s: %s", post.vo, address, error)
        return False
