"""How fast a day is replayed: jobs a second, at the density of a million jobs a day.

The day is made up: slots that have a job each from the beginning, and jobs that come as evenly as others end.
"""

import random
import time
from dataclasses import dataclass
from datetime import timedelta

from benchmarks import lhcb, plant
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from pilotage.replay import replay_database
from pilotage.replay.recorded_day import HeldJob, JobKind, RecordedDay, Stay
from pilotage.replay.simulation import Simulation
from taskqueue.day_record import Slot
from taskqueue.task_queues.class_derivation import derive_class

#: Jobs a day, and seconds that each of them runs on average.
DENSITY = 1_000_000
SECONDS = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a replay took."""

    jobs: int
    started: int
    cpu_seconds: float
    wall_seconds: float


def make_day(jobs: int, *, classes: int = 500, backlog: int = 0, seed: int = 0) -> RecordedDay:
    """Part of a day of `DENSITY` jobs, in which so many come; `backlog` more wait from its begin."""
    draw, config = random.Random(seed), plant.configuration()
    length = timedelta(seconds=86_400 * jobs / DENSITY)
    begin = plant.BEGIN
    day = RecordedDay(begin=begin, end=begin + length, configurations=[(begin, config)])
    options = options_for(config, lhcb.VO)
    kinds = []
    for asked in lhcb.requirement_classes(classes, seed):
        stated = {name: getattr(asked, name) for name in ("cpu_time", "sites", "platforms", "tags")} | {
            "job_type": min(asked.job_types)
        }
        own = derive_class(lhcb.VO, stated, options)
        owner, group = lhcb.OWNERS[int(own.digest[:8], 16) % len(lhcb.OWNERS)]
        day.classes[own.digest] = own
        kinds.append(JobKind(lhcb.VO, owner, group, own.digest, None, 1.0, stated["job_type"], ""))
    offers = lhcb.queues()
    for number in range(round(DENSITY * SECONDS / 86_400)):
        offer = offers[number % len(offers)]
        place = QueueAddress(site=str(offer["Site"]), ce=str(offer["GridCE"]), queue=str(offer["Queue"]))
        day.slots.append(
            Slot(
                stamp=f"pilot-{number}",
                vo=lhcb.VO,
                site=place.site,
                ce=place.ce,
                queue=place.queue,
                processors=1,
                begin=begin - timedelta(hours=1),
                end=day.end + timedelta(days=1),
                shape=None,
            )
        )
        day.held.append(
            HeldJob(
                job_id=number + 1,
                kind=draw.choice(kinds),
                stamp=f"pilot-{number}",
                place=place,
                since=begin - timedelta(minutes=1),
                until=begin + timedelta(seconds=draw.expovariate(1 / SECONDS)),
                processors=1,
                ram_mb=None,
            )
        )
    for number in range(jobs + backlog):
        since = begin + length * draw.random() if number < jobs else begin
        day.stays.append(
            Stay(
                job_id=100_000 + number,
                kind=draw.choice(kinds),
                since=since,
                until=since,
                site=str(offers[0]["Site"]),
                seconds=draw.expovariate(1 / SECONDS),
                has_ended=True,
            )
        )
    day.stays.sort(key=lambda each: each.since)
    return day


def measure(jobs: int, *, backlog: int = 0) -> Speed:
    """Replay a part of a day with so many jobs."""
    day = make_day(jobs, backlog=backlog)
    with replay_database.open_database() as engine:
        cpu, wall = time.process_time(), time.monotonic()
        found = Simulation(engine, day).run()
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    return Speed(
        jobs=jobs,
        started=sum(each is not None for each in found.starts),
        cpu_seconds=cpu,
        wall_seconds=wall,
    )
