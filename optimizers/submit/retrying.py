"""What the rules of retry make of a job that failed: its next description, checked as an edit is."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cs_config.options import retry_rules
from cs_config.options.job_rules import JobRuleError
from cs_config.options.operations import options_for
from cs_config.options.retry_rules import RetryRule
from cs_config.tree.configuration import Configuration
from optimizers.description import retry_changes
from optimizers.description.retry_changes import FailedRun
from optimizers.submit import checking
from optimizers.submit.checking import HasQueue
from optimizers.submit.editing import EditPlan
from requirements.errors import InvalidJob, PilotageError, Problem
from taskqueue.jobs import placeholders
from taskqueue.leases.retries import NewDescription, NoRetry, Retry, RetryDecision, RetryQuestion

#: Keyword with the rules.
RETRY: Final = "Retry"
#: Characters of why a job does not run again.
_LONGEST: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPlanner:
    """The rules of jobs, applied with one version of the configuration."""

    config: Configuration
    has_queue: HasQueue
    now: datetime

    def plan(self, question: RetryQuestion) -> RetryDecision | None:
        """What the rules make of the end of an attempt; None: none of them names it."""
        rules = self._read_rules(question)
        ending = question.failed.ending
        rule = retry_rules.find_rule(rules, ending)
        if rule is None or not rule.times:
            return None
        used = retry_rules.count_uses(rules, rule, question.before)
        if used >= rule.times:
            return NoRetry(reason=f"no retry is left of {rule.text!r}")
        try:
            change, note = self._change(question, rule)
        except PilotageError as error:
            why = "; ".join(str(error).splitlines())
            return NoRetry(reason=f"no retry by {rule.text!r}: {why}"[:_LONGEST])
        parts = [ending.describe(), note, f"retry {used + 1} of {rule.times}"]
        return Retry(note="; ".join(filter(None, parts)), delay=timedelta(seconds=rule.delay), change=change)

    def _read_rules(self, question: RetryQuestion) -> Sequence[RetryRule]:
        """The rules that a job states, else those of its VO; none that cannot be read any more."""
        options = options_for(self.config, question.job.vo).job_description
        body = question.stored.body
        try:
            texts = retry_rules.read_rules(body.get(RETRY, options.list_defaults(body).get(RETRY, ())))
        except JobRuleError:
            return []
        return [retry_rules.parse_rule(each) for each in texts]

    def _change(self, question: RetryQuestion, rule: RetryRule) -> tuple[NewDescription | None, str]:
        """The job with the description that a rule makes, and what is changed; raises why it cannot run."""
        job, stored, failed = question.job, question.stored, question.failed
        run = FailedRun(site=failed.site, ram_mb=failed.ram_mb)
        wanted = retry_changes.find_values(rule, stored.body, options_for(self.config, job.vo), run)
        if not wanted:
            return None, ""
        plan = EditPlan(config=self.config, wanted=wanted)
        plan.add(job, stored)
        for refusal in plan.result.refused.values():
            raise refusal
        if not plan.edited:
            return None, ""
        [edited], [new] = plan.edited, plan.new
        body = placeholders.fill_placeholders(new.body, stored.parameters)
        if not checking.has_queue_left(self.config, job, body, self.has_queue, now=self.now):
            message = f"no queue of {job.vo} could run the job with {edited.note}"
            raise InvalidJob([Problem(path=RETRY, message=message)])
        return NewDescription(job=edited, description=new), edited.note
