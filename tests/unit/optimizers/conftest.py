from collections.abc import Callable
from datetime import datetime

import pytest

from cs_config import validate
from cs_config.options.operations import options_for
from optimizers.chain.chain import ChainContext, JobContext
from optimizers.description import description
from optimizers.steps.replica_catalogue import CatalogueOpener


@pytest.fixture
def context_of(now: datetime) -> Callable[..., ChainContext]:
    def make(
        text: str = "Resources: {}", catalogues: dict[str, CatalogueOpener] | None = None
    ) -> ChainContext:
        config = validate.parse(text, "test", 1)
        return ChainContext(config=config, now=now, catalogues=catalogues or {})

    return make


@pytest.fixture
def candidate_of() -> Callable[..., JobContext]:
    def make(
        context: ChainContext, *, reschedules: int = 0, held_by: str | None = None, **raw: object
    ) -> JobContext:
        read = description.parse_description({"Executable": "a", **raw}, options_for(context.config, "lhcb"))
        return JobContext(
            job_id=1,
            vo="lhcb",
            owner="ann",
            owner_group="lhcb_user",
            description=read,
            reschedules=reschedules,
            held_by=held_by,
        )

    return make
