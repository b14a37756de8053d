"""Plans of retries: the rules of jobs, and whether a queue is left for what they make of a job."""

from datetime import datetime

from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from matcher.explain import queue_set
from matcher.explain.job_conditions import JobDemand
from optimizers.submit.checking import DryRun
from optimizers.submit.retrying import RETRY, RetryPlanner
from taskqueue.leases.retries import RetryPlan


def make_plan(config: Configuration, now: datetime) -> RetryPlan:
    """The plan of retries with a version of the configuration."""
    return RetryPlanner(config=config, has_queue=has_queue, now=now).plan


def has_rules(config: Configuration, vo: str | None) -> bool:
    """Whether a VO has rules of retry for all of its jobs."""
    return bool(options_for(config, vo).job_description.filled_in.get(RETRY))


def has_queue(config: Configuration, foreseen: DryRun) -> bool:
    """Whether a queue that the VO may use now is eligible for a job, or no queue can be used at all."""
    asked = foreseen.requirement_class
    queues = queue_set.all_queues(config, asked.vo)
    demand = JobDemand.from_stated(asked, foreseen.description.requirements)
    return not queues.candidates or bool(queues.eligible(demand))
