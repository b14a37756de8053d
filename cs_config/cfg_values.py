"""What a text of DIRAC's configuration stands for, and how a value is written there.

There every value is a text, and who reads it decides what it is; here a known parameter says what it may
be, and any other is read as it would be in YAML, with commas between the items of a list.
"""

from collections.abc import Iterator

from cs_config import known_parameters, scalars
from cs_config.sections import LeafValue
from requirements.values import Scalar, fold

#: DIRAC's words for true and false.
_FLAGS = {
    "y": True, "yes": True, "true": True, "1": True,
    "n": False, "no": False, "false": False, "0": False,
}  # fmt: skip
_NOT_IN_NAMES = frozenset("={}#/")


def read(name: str, text: str) -> Scalar | list[Scalar] | None:
    """The value of an option; None: it is empty, which says nothing."""
    if not text:
        return None
    for value in _candidates(text):
        seen = tuple(value) if isinstance(value, list) else value
        if known_parameters.fault(fold(name), seen) is None:  # of an unknown name never
            return value
    return next(_candidates(text))


def _candidates(text: str) -> Iterator[Scalar | list[Scalar]]:
    """The likeliest first."""
    if "," in text:
        items = [item.strip() for item in text.split(",") if item.strip()]
        yield [_scalar(item) for item in items]
        yield list(items)
    else:
        yield _scalar(text)
    if (flag := _FLAGS.get(text.lower())) is not None:
        yield flag
    yield text


def _scalar(text: str) -> Scalar:
    try:
        found = scalars.resolve(text)
    except ValueError:
        return text
    return text if found is None else found


def written(name: str, value: LeafValue) -> str | list[str] | None:
    """How a value is written, so that `read` gives it again; None: it cannot be said.

    A list takes an item a line; a comma behind the only item tells a list from a text.
    """
    if isinstance(value, list):
        items = ["" if item is None else _text(item) for item in value]
        text: str | list[str] = [f"{items[0]},"] if len(items) == 1 else items
    else:
        text = "" if value is None else _text(value)
    joined = ", ".join(text) if isinstance(text, list) else text
    is_line = joined == joined.strip() and len(joined.splitlines()) == 1
    return text if is_line and repr(read(name, joined)) == repr(value) else None


def _text(value: Scalar) -> str:
    return value if isinstance(value, str) else repr(value)


def is_name(name: str) -> bool:
    """Whether a name can stand there."""
    is_plain = name == name.strip() and len(name.splitlines()) == 1 and not name.endswith("+")
    return is_plain and not _NOT_IN_NAMES.intersection(name)
