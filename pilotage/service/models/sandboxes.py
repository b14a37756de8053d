"""Archives on the wire."""

from pydantic import BaseModel, Field


class Stored(BaseModel):
    """An input sandbox that was stored."""

    sandbox: str = Field(description="`sha256:<digest>`, to be named when jobs are submitted.")
