"""A description in each form that the service reads: JSON, JDL, YAML, CFG; one, several, parametric."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from tests.nightly.model import configuration
from tests.nightly.model.jobs import Description

FORMS = ("json", "jdl", "yaml", "cfg", "parametric")


def body(descriptions: list[Description], form: str, style: int) -> dict[str, Any]:
    """The body of a submission.

    Args:
        descriptions: Of the jobs; for `parametric` equal ones.
        form: One of `FORMS`.
        style: How expressions and names are spelled, which makes no difference.
    """
    spelled = [_spelled(each, style) for each in descriptions]
    if form == "json":
        return {"jobs": spelled}
    if form == "parametric":
        values = ", ".join(f'"p{number}"' for number in range(len(descriptions)))
        return {"jdl": _jdl({**spelled[0], "Arguments": "%s"}, f"Parameters = {{{values}}};")}
    texts = [_FORMS[form](each) for each in spelled]
    return {"jdl": texts[0]} if len(texts) == 1 else {"jdls": texts}


def _spelled(description: Description, style: int) -> Description:
    """Expressions as text; singular or plural, any case: §2 "Names are accepted in DIRAC's spelling"."""
    renamed = (
        {"Site": "Sites", "Tags": "tag", "MinRAM": "minram", "Platform": "Platforms"} if style % 2 else {}
    )
    written = {renamed.get(name, name): value for name, value in description.items()}
    if isinstance(written.get("Requirements"), list):
        written["Requirements"] = configuration.text_of(written["Requirements"], style)
    return written


def _jdl(description: Description, extra: str = "") -> str:
    lines = [
        f"{name} = {value if name == 'Requirements' and isinstance(value, str) else _in_jdl(value)};"
        for name, value in description.items()
    ]
    return "[\n" + "\n".join([*lines, extra]) + "\n]"


def _in_jdl(value: Any) -> str:
    if isinstance(value, Mapping):
        return "[ " + " ".join(f"{name} = {_in_jdl(each)};" for name, each in value.items()) + " ]"
    return configuration.literal(value)


def _yaml(description: Description) -> str:
    return yaml.safe_dump(description, sort_keys=False)


def _cfg(description: Description) -> str:
    lines = []
    for name, value in description.items():
        if isinstance(value, Mapping):
            inner = [f"  {each} = {_in_cfg(what)}" for each, what in value.items()]
            lines += [name, "{", *inner, "}"]
        else:
            lines.append(f"{name} = {value if name == 'Requirements' else _in_cfg(value)}")
    return "\n".join(lines) + "\n"


def _in_cfg(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_in_cfg, value))
    return json.dumps(value)


_FORMS = {"jdl": _jdl, "yaml": _yaml, "cfg": _cfg}
