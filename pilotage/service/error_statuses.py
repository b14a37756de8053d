"""The HTTP status of each type of error: one table."""

from typing import Final

from cs_config import errors as config_errors
from matcher.preview import outlook
from matcher.request import match_request as matcher_errors
from optimizers.submit.plan import PlanTooLarge
from pilotage.service import http_errors
from pilotage.service.auth.oidc import discovery
from requirements.errors import InvalidInput, NotAllowed, NotFound
from taskqueue import errors as taskqueue_errors

#: The status of each type of error; a type without an entry has that of its nearest base class.
STATUS: Final[dict[type[Exception], int]] = {
    InvalidInput: 400,
    NotAllowed: 403,
    NotFound: 404,
    config_errors.ConfigError: 422,
    config_errors.VersionConflict: 409,
    outlook.GuardFailed: 409,
    taskqueue_errors.IllegalTransition: 409,
    taskqueue_errors.StaleLease: 409,
    taskqueue_errors.OutputMissing: 409,
    taskqueue_errors.RescheduleLimit: 409,
    taskqueue_errors.NotHeld: 409,
    taskqueue_errors.JobKept: 409,
    taskqueue_errors.IdempotencyConflict: 409,
    taskqueue_errors.SecretUsed: 409,
    taskqueue_errors.OtherProcess: 409,
    taskqueue_errors.QuotaExceeded: 429,
    taskqueue_errors.TooLarge: 413,
    PlanTooLarge: 413,
    taskqueue_errors.NotConfirmed: 503,
    taskqueue_errors.StorageAway: 503,
    matcher_errors.Busy: 503,
    matcher_errors.NotInTime: 503,
    http_errors.NotAuthenticated: 401,
    http_errors.ClockBehind: 503,
    http_errors.ClockWrong: 503,
    http_errors.ForgedRequest: 403,
    http_errors.NotHere: 404,
    discovery.IssuerAway: 503,
    http_errors.CursorExpired: 410,
    http_errors.LogBusy: 503,
    http_errors.TooManyLogins: 503,
    http_errors.BodyTooLarge: 413,
    http_errors.PreconditionRequired: 428,
    http_errors.TooManyRequests: 429,
    http_errors.TooManyStreams: 429,
    http_errors.SenderSilent: 408,
    http_errors.ServiceEnding: 503,
    http_errors.ClientGone: 400,
}


def status_of(error: Exception) -> int:
    """Return the status of the nearest type in the table, or 500."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
