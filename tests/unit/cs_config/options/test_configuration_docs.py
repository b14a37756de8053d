from pathlib import Path

import pytest

from cs_config.editing import show
from cs_config.options.options import DeclaredName, JobType, ShareCorrection, TimeSlice, VoOptions
from cs_config.tree.parameters import KNOWN
from cs_config.tree.throttle import Policy, Throttle

DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_every_known_parameter_is_documented(known: object) -> None:
    text = (DOCS / "site-admin" / "parameters.md").read_text()
    assert f"| `{known.name}` | {known.allowed} | {known.meaning} |" in text  # type: ignore[attr-defined]


def test_every_option_is_documented() -> None:
    text = (DOCS / "vo-admin" / "options.md").read_text()
    models = [
        (field.alias, field.annotation)
        for field in VoOptions.model_fields.values()
        if field.alias != "JobTypes"
    ]
    models += [("ShareCorrections/<name>", ShareCorrection), ("TimeSlices/<name>", TimeSlice)]
    models += [("JobTypes/<type>", JobType)]
    for section, model in [*models, ("<Name>", DeclaredName)]:
        assert section in text
        docstrings = show.read_docstrings(model)
        for name, option in model.model_fields.items():
            if option.alias != "Declared":
                assert f"| `{option.alias}` | " in text
                assert " ".join(docstrings[name].split()) in text


def test_every_option_of_a_throttle_is_documented() -> None:
    text = (DOCS / "site-admin" / "throttles.md").read_text()
    docstrings = show.read_docstrings(Throttle)
    for name, option in Throttle.model_fields.items():
        assert f"| `{option.alias}` | {' '.join(docstrings[name].split())}" in text
    for policy in Policy:
        assert f"| `{policy}` | " in text
