"""Submitter of jobs, and their owner."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cs_config.options import keywords
from cs_config.tree.configuration import Configuration
from requirements.errors import InvalidJob, NotAllowed, Problem, did_you_mean
from requirements.values import fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """Sender of a submission, from the token."""

    subject: str  #: of the token: the scope of idempotency keys
    vo: str = ""  #: empty: an operator, whose descriptions must name one
    owner: str = ""
    owner_group: str = ""  #: empty: `<vo>_user`
    operator: bool = False  #: may submit for others


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Owner of a job."""

    vo: str  #: lower case
    owner: str
    owner_group: str


def resolve_ownership(raw: Mapping[str, object], submitter: Submitter, config: Configuration) -> Ownership:
    """Determine the owner of the jobs of a description: the submitter, unless an operator names another.

    Raises NotAllowed if another one does; InvalidJob without VO or owner, and for an unknown VO.
    """
    named = dict.fromkeys(("VO", "Owner", "OwnerGroup"), "")
    for spelled, value in raw.items():  # wrong types are left to `parse_description`
        keyword = keywords.find_keyword(spelled)
        if keyword and keyword.name in named and isinstance(value, str):
            named[keyword.name] = named[keyword.name] or value.strip()
    if not submitter.operator and any(named.values()):
        _require_own(named, submitter)
    known = config.registry.groups.get(named["OwnerGroup"])
    vo = fold(named["VO"] or (known.vo if known and known.vo else "") or submitter.vo)
    owner = named["Owner"] or submitter.owner
    missing = {"VO": "" if vo else _list_vos(config), "Owner": "" if owner else "is missing"}
    problems = [Problem(path=name, message=message) for name, message in missing.items() if message]
    if vo and submitter.operator:
        problems += _unknown(vo, config)
    if problems:
        raise InvalidJob(problems)
    group = named["OwnerGroup"] or (submitter.owner_group if vo == fold(submitter.vo) else "")
    return Ownership(vo=vo, owner=owner, owner_group=group or f"{vo}_user")


def _require_own(named: Mapping[str, str], submitter: Submitter) -> None:
    own = {"VO": submitter.vo, "Owner": submitter.owner, "OwnerGroup": submitter.owner_group}
    others = [
        f"{name}: {value!r:.80}, yours is {own[name]!r}"
        for name, value in named.items()
        if value and not _same(name, value, own[name])
    ]
    if others:
        raise NotAllowed(f"you may not submit for others, only an operator may ({'; '.join(others)})")


#: VOs that a message names.
_MOST_NAMED = 20


def _list_vos(config: Configuration) -> str:
    """The problem of a description without a VO, which only operators need to name."""
    named = sorted(config.vos)[:_MOST_NAMED]
    more = f" and {len(config.vos) - len(named)} more" if len(config.vos) > len(named) else ""
    return f"is missing; there are {', '.join(named)}{more}" if named else "is missing"


def _unknown(vo: str, config: Configuration) -> Iterator[Problem]:
    """Yield the problem of a VO that is missing from a configuration that has any."""
    if config.vos and vo not in config.vos:
        message = f"{vo!r:.80} is not in the configuration"
        yield Problem(path="VO", message=message, suggestion=did_you_mean(vo, config.vos))


def _same(name: str, value: str, own: str) -> bool:
    return fold(value) == fold(own) if name == "VO" else value == own
