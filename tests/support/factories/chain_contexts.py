"""What the chain of optimizers gets: a configuration at a time, and jobs of one user."""

from datetime import UTC, datetime

from cs_config import validate
from cs_config.options.operations import options_for
from optimizers.chain.chain import ChainContext, JobContext
from optimizers.description import description
from optimizers.steps.replica_catalogue import CatalogueOpener


def context_of(
    text: str = "Resources: {}", catalogues: dict[str, CatalogueOpener] | None = None
) -> ChainContext:
    now = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
    return ChainContext(config=validate.parse(text, "test", 1), now=now, catalogues=catalogues or {})


def candidate_of(
    context: ChainContext, *, reschedules: int = 0, held_by: str | None = None, **raw: object
) -> JobContext:
    return JobContext(
        job_id=1,
        vo="lhcb",
        owner="ann",
        owner_group="lhcb_user",
        description=description.parse_description(
            {"Executable": "a", **raw}, options_for(context.config, "lhcb")
        ),
        reschedules=reschedules,
        held_by=held_by,
    )
