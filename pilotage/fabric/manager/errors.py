"""What may go wrong in a job manager, by who has to act."""

from requirements.errors import PilotageError


class UnfitJob(PilotageError):
    """The handler will not have this grid job, here or as it is: the user or the site has to change it."""

    code = "unfit_job"


class StateUnusable(PilotageError):
    """What is known of grid jobs cannot be read or written: nothing was changed, mend the directory."""

    code = "state_unusable"
