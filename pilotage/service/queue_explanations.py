"""What a queue is to those that wait, as it is answered."""

from cs_config import admissions
from cs_config.address import QueueAddress
from matcher import closures, holding, job_ads, shop_window
from pilotage.service import waiting_work
from pilotage.service.callers import Caller
from pilotage.service.models.explain import ExcludedAnswer, OfferAnswer, QueueExplanation, WorkAnswer
from pilotage.service.parts import Parts
from taskqueue import database, waiting_classes


def of_queue(parts: Parts, caller: Caller, address: QueueAddress) -> QueueExplanation:
    """Which waiting jobs a queue of the tree may run, what excludes the rest, and what it could offer."""
    config = parts.live.current
    with database.reading(parts.engine) as conn:
        vos = _vos(caller, address.site)
        waiting = waiting_work.classes(parts, conn, vos)
        now = list(closures.at_queue(conn, config, address, parts.clock(), vos=vos))
        now += holding.pilots_at(conn, address, {each.asked.vo for each in waiting}, parts.clock())
        asked = any(admissions.of(config, address, each.asked.vo) for each in waiting)
        jobs = list(waiting_classes.first_jobs(conn, waiting)) if asked else []
    found = shop_window.window(config, address, waiting, {job.job_id: job_ads.of(job) for job in jobs})
    return QueueExplanation(
        queue=str(address),
        waiting={vo: WorkAnswer.of(work) for vo, work in found.waiting.items()},
        serves={vo: WorkAnswer.of(work) for vo, work in found.served.items()},
        reasons=[ExcludedAnswer.of(each, readable=caller.may_read(each.vo)) for each in found.excluded],
        changes=[OfferAnswer.of(each) for each in found.offers],
        now=now,
    )


def _vos(caller: Caller, site: str) -> frozenset[str] | None:
    """The VOs whose waiting jobs count; None: all. A site's own admin sees what is asked of the site."""
    return None if caller.looks_after(site) else caller.visible_vos
