"""What jobs that wait long give up: their next descriptions, checked as an edit is."""

import json
from dataclasses import dataclass, field, replace
from datetime import datetime

from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.description import relax_changes
from optimizers.submit import checking
from optimizers.submit.checking import HasQueue
from optimizers.submit.editing import EditPlan
from taskqueue.jobs import placeholders
from taskqueue.jobs.descriptions import Description, StoredDescription
from taskqueue.jobs.edits import EditedJob
from taskqueue.jobs.jobs import Job


@dataclass(slots=True, kw_only=True)
class RelaxPlan:
    """New descriptions of waiting jobs, with one version of the configuration.

    A job is left as it is if the new description is not allowed, or no queue could run the job with it.
    """

    config: Configuration
    has_queue: HasQueue
    now: datetime
    _plans: dict[tuple[int, str], EditPlan] = field(default_factory=dict)

    def add(self, job: Job, stored: StoredDescription, *, waited: float) -> None:
        """Plan what a job gives up after it waited so many seconds."""
        body = placeholders.fill_placeholders(stored.body, stored.parameters)
        step = relax_changes.find_step(body, options_for(self.config, job.vo), waited=waited)
        if step is None:
            return
        key = (stored.description_id, json.dumps(step.values, sort_keys=True))
        plan = self._plans.setdefault(key, EditPlan(config=self.config, wanted=step.values))
        plan.add(job, stored)
        if not plan.edited or plan.edited[-1].job_id != job.job_id:
            return
        changed = placeholders.fill_placeholders(plan.new[-1].body, stored.parameters)
        if checking.has_queue_left(self.config, job, changed, self.has_queue, now=self.now):
            plan.edited[-1] = replace(plan.edited[-1], note=step.note)
        else:
            plan.edited.pop()

    def list_edits(self) -> tuple[list[EditedJob], list[Description]]:
        """The jobs that give something up, and their new descriptions."""
        edited: list[EditedJob] = []
        new: list[Description] = []
        for plan in self._plans.values():
            edited += (replace(each, place=len(new) + each.place) for each in plan.edited)
            new += plan.new
        return edited, new
