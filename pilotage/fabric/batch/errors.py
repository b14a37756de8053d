"""What may go wrong between us and a batch system, by what to do next."""

from requirements.errors import PilotageError


class BatchSystemAway(PilotageError):
    """It could not be asked: skip it this cycle, conclude nothing."""

    code = "ce_unavailable"


class SubmissionRefused(PilotageError):
    """The batch system will not take this job, now or later: mend the queue, the resources or the flags."""

    code = "submission_refused"


class SubmissionUncertain(PilotageError):
    """The batch system did not answer: the job may be there. Look for its stamp before submitting again."""

    code = "submission_uncertain"
