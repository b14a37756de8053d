from collections.abc import Callable
from datetime import datetime

import pytest

from cs_config import validate
from cs_config.operations import operations
from optimizers import description
from optimizers.candidate import Candidate
from optimizers.catalogue import CatalogueOpener
from optimizers.context import Context
from optimizers.eligibility import Eligibility


@pytest.fixture
def context_of(now: datetime) -> Callable[..., Context]:
    def make(text: str = "Resources: {}", catalogues: dict[str, CatalogueOpener] | None = None) -> Context:
        config = validate.parse(text, "test", 1)
        return Context(config=config, now=now, eligibility=Eligibility(config), catalogues=catalogues or {})

    return make


@pytest.fixture
def candidate_of() -> Callable[..., Candidate]:
    def make(
        context: Context, *, reschedules: int = 0, held_by: str | None = None, **raw: object
    ) -> Candidate:
        read = description.parse({"Executable": "a", **raw}, operations(context.config, "lhcb"))
        return Candidate(
            job_id=1,
            vo="lhcb",
            owner="ann",
            owner_group="lhcb_user",
            description=read,
            reschedules=reschedules,
            held_by=held_by,
        )

    return make
