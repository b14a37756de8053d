"""What a queue is to those that wait, as it is answered."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from cs_config import admissions
from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from matcher import closures, holding, job_ads, shop_window
from pilotage.service import told, waiting_work
from pilotage.service.callers import Caller
from pilotage.service.models.explain import ExcludedAnswer, OfferAnswer, QueueExplanation, WorkAnswer
from pilotage.service.parts import Parts
from requirements.values import Value
from taskqueue import database, waiting_classes
from taskqueue.waiting_classes import WaitingClass


def of_queue(parts: Parts, caller: Caller, address: QueueAddress) -> QueueExplanation:
    """Which waiting jobs a queue of the tree may run, what excludes the rest, and what it could offer."""
    config = parts.live.current
    vos = told.vos_at(caller, address.site)
    with database.reading(parts.engine) as conn:
        waiting = waiting_work.classes(parts, conn, vos)
        now = list(closures.at_queue(conn, config, address, parts.clock(), vos=vos))
        now += holding.pilots_at(conn, address, {each.asked.vo for each in waiting}, parts.clock())
        jobs = _jobs(conn, config, [address], waiting)
    found = shop_window.window(config, address, waiting, jobs)
    return QueueExplanation(
        queue=str(address),
        waiting={vo: WorkAnswer.of(work) for vo, work in found.waiting.items()},
        serves={vo: WorkAnswer.of(work) for vo, work in found.served.items()},
        reasons=[ExcludedAnswer.of(each, readable=caller.may_read(each.vo)) for each in found.excluded],
        changes=[OfferAnswer.of(each) for each in found.offers],
        now=now,
    )


def offers(
    parts: Parts, caller: Caller, site: str, queues: Sequence[QueueAddress]
) -> list[tuple[QueueAddress, OfferAnswer]]:
    """What each of some queues of a site could offer to get more work."""
    config = parts.live.current
    with database.reading(parts.engine) as conn:
        waiting = waiting_work.classes(parts, conn, told.vos_at(caller, site))
        jobs = _jobs(conn, config, queues, waiting)
    found = shop_window.offers(config, queues, waiting, jobs)
    return [(queue, OfferAnswer.of(each)) for queue in queues for each in found.get(queue, ())]


def _jobs(
    conn: Connection,
    config: Configuration,
    queues: Sequence[QueueAddress],
    waiting: Sequence[WaitingClass],
) -> Mapping[int, Mapping[str, Value]]:
    """The jobs that stand for their classes, where a queue asks who they are."""
    vos = {each.asked.vo for each in waiting}
    asked = any(admissions.of(config, queue, vo) for queue in queues for vo in vos)
    return {job.job_id: job_ads.of(job) for job in waiting_classes.first_jobs(conn, waiting)} if asked else {}
