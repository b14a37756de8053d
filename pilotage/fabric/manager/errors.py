"""Errors of a job manager, by who has to act."""

from requirements.errors import PilotageError


class UnfitJob(PilotageError):
    """The handler refuses the grid job, here or in this form: the user or the site has to change it."""

    code = "unfit_job"


class StateUnusable(PilotageError):
    """The journal cannot be read or written; nothing was changed, and the directory needs repair."""

    code = "state_unusable"
