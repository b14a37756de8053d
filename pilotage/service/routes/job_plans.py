"""Plans of submissions: which files descriptions need, and how they are divided into requests."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from optimizers.submit import plan
from optimizers.submit.plan import GivenSource
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Capability, Role
from pilotage.service.models import StrictInput
from pilotage.service.routing import ApiRoute
from requirements.errors import InvalidRequest, Problem

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=ApiRoute)

#: Sources in one request.
_MOST = 1000


class PlanSource(StrictInput):
    """Exactly one of `jdl` and `job`."""

    jdl: str | None = Field(default=None, description="A text: JDL, ClassAd, CFG or YAML, also of several.")
    job: dict[str, Any] | None = Field(default=None, description="One job, as a JSON object of keywords.")
    name: str = Field(default="", max_length=4096, description="Of its file, for messages.")
    place: int = Field(
        default=0, ge=0, description="The same for sources whose equal names mean the same files."
    )


class SubmissionQuestion(StrictInput):
    """What is to be submitted."""

    sources: list[PlanSource] = Field(min_length=1, max_length=_MOST)
    parameters: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="Values by name: one job for each combination; it replaces `%(NAME)s`.",
    )
    count: int = Field(default=1, ge=1, le=1_000_000, description="Copies of each job.")


class PieceAnswer(BaseModel):
    """A description to be sent."""

    model_config = ConfigDict(from_attributes=True)

    source: int | None = Field(description="Index of the source that is to be sent as it is.")
    job: dict[str, Any] | None = Field(description="Otherwise the description, to be sent in `jobs`.")


class PlannedRequestAnswer(BaseModel):
    """A request to be sent to `POST /jobs`."""

    model_config = ConfigDict(from_attributes=True)

    parts: list[tuple[int, int]] = Field(description="Indices of pieces, and how often each is repeated.")
    is_text: bool = Field(description="The pieces go into `jdls`, otherwise into `jobs`.")
    files: list[str] = Field(description="Local files of the input sandbox, as the description names them.")
    executables: list[str] = Field(
        description="Programs that the sandbox lacks: send those that lie beside the description, too."
    )
    mentioned: list[str] = Field(description="Words of arguments, which may be names of files.")
    place: int = Field(description="That of the sources.")
    vo: str | None = Field(description="VO to store the input sandbox for; null: the token's.")
    jobs: int


class PlanAnswer(BaseModel):
    """The requests that submit the jobs, in order."""

    model_config = ConfigDict(from_attributes=True)

    descriptions: int = Field(description="Descriptions in the sources.")
    pieces: list[PieceAnswer]
    requests: list[PlannedRequestAnswer]
    warnings: list[str] = Field(description="Of placeholders without values.")
    is_linked: bool = Field(
        description="Jobs name others: send all in one request, each sandbox in `InputSandbox` of its jobs."
    )


@router.post("/plan")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CREATE, keeps_numbers=True)
def plan_submission(body: SubmissionQuestion) -> PlanAnswer:
    """Plan a submission: which local files jobs need, and in which requests to send them; nothing is stored.

    Pack the files of a request under their base names, send them to `POST /sandboxes`, and then the request.
    """
    sources = [
        GivenSource(content=_read_content(each, index), name=each.name, place=each.place)
        for index, each in enumerate(body.sources)
    ]
    planned = plan.plan_submission(sources, parameters=body.parameters, count=body.count, is_bounded=True)
    return PlanAnswer.model_validate(planned)


def _read_content(source: PlanSource, index: int) -> str | dict[str, Any]:
    if source.jdl is not None and source.job is None:
        return source.jdl
    if source.job is not None and source.jdl is None:
        return source.job
    raise InvalidRequest([Problem(path=f"sources[{index}]", message="needs exactly one of jdl and job")])
