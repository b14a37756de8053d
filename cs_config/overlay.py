"""A tree that comes from elsewhere, laid over what is in force: its values win, what it does not name stays.

What our tree does not allow is left out, and told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cs_config import differences, proposals, text_edit, validate
from cs_config.configuration import Configuration
from cs_config.errors import ConfigError
from cs_config.proposals import Proposal
from requirements.problem import Problem
from requirements.values import fold

#: Times that what is wrong is taken out: each may bring something else to light.
_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A configuration with the text in it, and what could not be carried over."""

    proposal: Proposal
    notes: tuple[Problem, ...]


def over(config: Configuration, tree: dict[str, object], notes: list[Problem], file: str) -> Imported:
    """The configuration in force with a tree over it, without what is not allowed.

    Raises:
        ConfigError: What would come out is wrong, and not by what the tree says.
    """
    for _ in range(_ROUNDS):
        whole = _merged(config.tree, tree)
        text = config.source
        if not differences.equal(whole, dict(config.tree)):
            text = text_edit.edited(config.source, config.tree, whole)
        found = validate.report(text, proposals.API, config.version)
        if found.configuration is not None:
            return Imported(proposal=proposals.of_text(config, text), notes=tuple(notes))
        if not _without_wrong(tree, found.errors, notes, file):
            raise ConfigError(found.errors)
    raise ConfigError(found.errors)


def _merged(under: Mapping[str, object], over_it: Mapping[str, object]) -> dict[str, object]:
    """Both in one; names that are there in another case of letters stay as they are spelled."""
    merged = dict(under)
    spelled = {fold(name): name for name in under}
    for name, entry in over_it.items():
        here = spelled.get(fold(name), name)
        below = merged.get(here)
        if isinstance(entry, dict):
            merged[here] = _merged(below if isinstance(below, dict) else {}, entry)
        else:
            merged[here] = entry
    return merged


def _without_wrong(
    tree: dict[str, object], errors: Sequence[Problem], notes: list[Problem], file: str
) -> bool:
    """Take out of the tree what errors name; whether there was anything."""
    found = False
    for error in errors:
        if path := _taken_out(tree, error.path.split("/")):
            found = True
            meant = f", did you mean {error.suggestion}?" if error.suggestion else ""
            notes.append(Problem(path=path, message=f"not carried over: {error.message}{meant}", file=file))
    return found


def _taken_out(tree: dict[str, object], names: Sequence[str]) -> str | None:
    """The path that was there and is not any more: the names as far as they go in the tree."""
    here: object = tree
    above: list[tuple[dict[str, object], str]] = []
    for wanted in names:
        known = here if isinstance(here, dict) else {}
        name = next((each for each in known if fold(each) == fold(wanted)), None)
        if name is None:
            break
        above.append((known, name))
        here = known[name]
    if len(above) < len(names) and (not above or isinstance(here, dict)):
        return None
    section, name = above[-1]
    del section[name]
    return "/".join(name for _, name in above)
