"""Errors of commands and of the client, before or beside those of the service."""

from requirements.errors import PilotageError


class CommandRefused(PilotageError):
    """The command cannot be carried out."""

    code = "refused"


class WrongUsage(PilotageError):
    """The command line or the settings are invalid."""

    code = "wrong_usage"
