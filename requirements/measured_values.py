"""Names of what gateways and `site advertise --watch` measure, and advertise beside the numbers of jobs."""

from collections.abc import Mapping
from typing import Final

#: Seconds that a measured value counts. What is older is left out, so a place that closed itself opens again.
WINDOW: Final = 900
LOAD: Final = "Load"
SUBMIT_SECONDS: Final = "SubmitSeconds"
SUBMIT_ERRORS: Final = "SubmitErrors"
#: What each name means, for people.
MEASURED: Final[Mapping[str, str]] = {
    LOAD: "Load average of the last minute per core of the host where the batch system's commands run.",
    SUBMIT_SECONDS: "Seconds that nine of ten submissions took at most, of the latest 100 within 15 minutes; "
    "0 without any.",
    SUBMIT_ERRORS: "How many of these submissions failed.",
}
