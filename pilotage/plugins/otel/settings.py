"""Settings of traces."""

from typing import Annotated

from pydantic import BaseModel, Field

from pilotage.cli import options


class TraceSettings(BaseModel):
    """Where traces are sent."""

    otlp_url: Annotated[
        str | None,
        options.option(
            "URL",
            "OpenTelemetry collector that gets a trace of each ended job, such as http://localhost:4318 "
            "(default: PILOTAGE_OTLP_URL or none).",
        ),
    ] = Field(default=None, pattern="^https?://")
