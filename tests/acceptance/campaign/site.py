"""The grid of the campaign: its configuration and its jobs."""

import random
from collections.abc import Mapping
from pathlib import Path

from tests.acceptance.campaign.record import Bounds

VO = "campaign"
LIMITED, LEVEL2, BROKERING, PLAIN = "LCG.Limited.org", "LCG.Level2.org", "LCG.Broker.org", "LCG.Plain.org"
REAL, GATE = "LCG.Real.org", "OSG.Gate.org"
#: Kinds of clients, each with a link of its own to the services.
CLIENTS = ("users", "administrators", "pilots", "sites", "director", "gateway")
#: Most jobs of a kind that run at the limited site; the lower number is configured now and then.
KIND, MOST, FEWER = "Merge", 7, 5
#: The matching delay at the limited site: a job in so many seconds, and so many at once.
SLOW, DELAY, BURST = "Slow", 0.5, 3
KINDS = ("Merge", "Merge", "User", "Slow")
LEASE_TIME, RUN_ON = 15.0, 15.0  #: seconds
_LEASES = f"    Leases: {{Time: {LEASE_TIME:g}, StalledTime: 10, StalledGrace: 1, RunOnTime: {RUN_ON:g}}}\n"
BOUNDS = {
    LIMITED: Bounds(),
    LEVEL2: Bounds(jobs=6, busy=4),
    BROKERING: Bounds(jobs=6, submitting=2),
    PLAIN: Bounds(),
}
#: Simulated pilots at each site: more than its limits take.
PILOTS = {LIMITED: 9, LEVEL2: 5, BROKERING: 5, PLAIN: 2}
#: Scopes that advertise, with the room that an empty one has.
ADVERTISED = {LEVEL2: (LEVEL2,), BROKERING: (BROKERING, f"{BROKERING}/ce/q")}
EMPTY_ROOM = {LEVEL2: 4, BROKERING: 3, f"{BROKERING}/ce/q": 2}
LIMIT_PATH = f"Operations/Defaults/JobScheduling/RunningLimit/{LIMITED}/JobType/{KIND}"

RESOURCES = f"""
Resources:
  Sites:
    {LIMITED}: {{CEs: {{ce: {{Queues: {{q: {{CPUTime: 1000000}}}}}}}}}}
    {LEVEL2}:
      Throttle: {{Policy: level2, MaxJobs: 6, MaxSubmittingAndOutputGatheringJobs: 4}}
      CEs: {{ce: {{Queues: {{q: {{CPUTime: 1000000}}}}}}}}
    {BROKERING}:
      Throttle: {{Policy: brokering, MaxJobs: 6, MaxSubmittingJobs: 3}}
      CEs:
        ce: {{Queues: {{q: {{CPUTime: 1000000, Throttle: {{Policy: level0, MaxSubmittingJobs: 2}}}}}}}}
    {PLAIN}:
      CEs: {{ce: {{MaxRAM: 4000, Queues: {{q: {{CPUTime: 1000000}}}}}}}}
    {REAL}:
      CEs:
        ce:
          MaxRAM: 4000
          Queues:
            q: {{CPUTime: 100000}}
            local: {{CPUTime: 100000, MaxTotalJobs: 2, MaxWaitingJobs: 2}}
    {GATE}:
      CEs: {{ce: {{Queues: {{q: {{CPUTime: 100000, JobType: [generic]}}}}}}}}
Operations:
  Defaults:
    JobDescription:
      Memory: {{type: number, resource: MaxRAM}}
    JobScheduling:
      MaxRescheduling: 1000
      RescheduleDelays: [0]
      HoldTime: 1
      RunningLimit: {{{LIMITED}: {{JobType: {{{KIND}: {MOST}}}}}}}
      MatchingDelay:
        {LIMITED}: {{JobType: {{{SLOW}: {DELAY}}}, Burst: {{JobType: {{{SLOW}: {BURST}}}}}}}
{_LEASES}    Limits: {{RequestsPerSecond: 100000, PilotClaimsPerHour: 1000000}}
Registry:
  VO: {{{VO}: {{}}}}
"""


#: For tests in which no pilot is lost: the machine may stand still between two of its reports.
LASTING = RESOURCES.replace(_LEASES, "")


def make_job(dice: random.Random, ledger: Path, *, real: bool) -> Mapping[str, object]:
    """A job for simulated pilots, or for those that run it."""
    kind = dice.random()
    if not real or kind < 0.7:
        kind_of_job = dice.choice(KINDS)
        sites = [LIMITED, LEVEL2] if kind_of_job == KIND else list(BOUNDS)
        job = {"Executable": "x", "JobType": kind_of_job, "Site": sites}
        return {**job, "Requirements": {"Memory": 1000}} if kind < 0.15 and PLAIN in sites else job
    begin, end = (f"echo {word} $JOBID $$ >>{ledger}" for word in ("begin", "end"))
    if kind < 0.92:
        script = f"{begin}; sleep 0.{dice.randrange(10)}; echo $JOBID >out.txt; {end}"
        run = {"Executable": "/bin/sh", "Arguments": f"-c '{script}'", "OutputSandbox": ["out.txt"]}
        return {**run, "Site": REAL, "JobName": "real", "CPUTime": 100}
    return {"JobType": "generic", "Executable": "/bin/true", "LocalJobs": 2, "JobName": "grid", "Site": GATE}
