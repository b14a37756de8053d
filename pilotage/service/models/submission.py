"""Submissions on the wire."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

#: Descriptions in one submission.
MOST = 1000


class Submission(BaseModel):
    """Jobs to submit: exactly one of `jdl`, `jdls` and `jobs`."""

    model_config = ConfigDict(extra="forbid")

    jdl: str | None = Field(default=None, description="One description: JDL, ClassAd or YAML.")
    jdls: list[str] | None = Field(default=None, min_length=1, max_length=MOST, description="Several.")
    jobs: list[dict[str, Any]] | None = Field(
        default=None, min_length=1, max_length=MOST, description="Several, as JSON objects of keywords."
    )
    sandbox: str | None = Field(
        default=None,
        pattern="^sha256:[0-9a-f]{64}$",
        description="Input sandbox of all of them, as `POST /sandboxes` answered it.",
    )


class Submitted(BaseModel):
    """The new jobs, in the order of their descriptions."""

    job_ids: list[int]
