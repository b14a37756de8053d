"""Canonical form of requirements and its hash, the SubmitPool id.

Source: RFC #7, RFC 8785.
"""

import hashlib
import json

import rfc8785

from requirements.classad.expression import Expression, canonical_text, pool_expression
from requirements.record import Record
from requirements.values import fold, format_value, normal, to_nfc

Requirements = Record | Expression


def canonical(requirements: Requirements, vo: str) -> bytes:
    """Return the same bytes for equal requirements of a VO, on any machine and in any release."""
    if isinstance(requirements, Record):
        form: object = {fold(name): normal(value) for name, value in requirements.values}
    else:
        form = canonical_text(requirements)
    return rfc8785.dumps({"requirements": form, "v": 1, "vo": to_nfc(vo.lower())})  # type: ignore[dict-item]


def pool_form(requirements: Requirements) -> Requirements:
    """Return the requirements that are evaluated for all jobs of a pool, however each spells them.

    Of a record every spelling has the same answers.
    """
    return requirements if isinstance(requirements, Record) else pool_expression(requirements)


def pool_id(requirements: Requirements, vo: str) -> str:
    """Identity of the SubmitPool: SHA-256 of the canonical form, 64 lower-case hexadecimal digits."""
    return identity(canonical(requirements, vo))


def identity(form: bytes) -> str:
    """SHA-256 of a canonical form."""
    return hashlib.sha256(form).hexdigest()


def to_json(requirements: Requirements) -> str:
    """Convert requirements to JSON in their original spelling, for storage."""
    if isinstance(requirements, Expression):
        return json.dumps({"expression": requirements.text}, ensure_ascii=False)
    return json.dumps({"record": dict(requirements.values)}, ensure_ascii=False)


def from_json(text: str) -> Requirements:
    """Read requirements written by `to_json`."""
    stored = json.loads(text)
    if "expression" in stored:
        return Expression(text=stored["expression"])
    return Record(
        values=tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in stored["record"].items()
        )
    )


def format_lines(original: str) -> tuple[str, ...]:
    """Format requirements written by `to_json` for people: the lines of a record, or the expression."""
    requirements = from_json(original)
    if isinstance(requirements, Record):
        return tuple(f"{name} = {format_value(value)}" for name, value in requirements.values)
    return (requirements.text,)
