"""Base of the models of options, and the kinds of their values with their bounds."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_pascal

from cs_config.options import bounds

Seconds = Annotated[float, Field(ge=0, le=bounds.SECONDS)]
SomeSeconds = Annotated[float, Field(ge=bounds.SHORTEST, le=bounds.SECONDS)]
Days = Annotated[float, Field(ge=0, le=bounds.DAYS)]
Count = Annotated[int, Field(ge=0, le=bounds.JOBS)]
Bytes = Annotated[int, Field(ge=0, le=bounds.BYTES)]


def _as_tuple(value: object) -> object:
    """A single value as a list of one: DIRAC's text format cannot write such a list."""
    return (value,) if isinstance(value, str | int | float) and not isinstance(value, bool) else value


#: One value, or a list.
OneOrMore = BeforeValidator(_as_tuple)


Texts = Annotated[tuple[str, ...], OneOrMore, Field(max_length=bounds.LISTED)]


class Options(BaseModel):
    """Base of an option section: strict types, no unknown names."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_pascal,
        populate_by_name=False,
    )


def list_flags(model: type[Options] = Options) -> frozenset[str]:
    """The names of the options that are true or false, in a model and those derived from it."""
    own = (field.alias for field in model.model_fields.values() if field.annotation is bool)
    return frozenset(filter(None, own)).union(*map(list_flags, model.__subclasses__()))
