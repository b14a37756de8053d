from pathlib import Path

from cs_config.editing import show
from cs_config.tree.throttle import Policy, Throttle
from requirements.measured_values import MEASURED

DOCS = Path(__file__).parents[4] / "docs"


def test_every_option_of_a_throttle_is_documented() -> None:
    text = (DOCS / "site-admin" / "throttles.md").read_text()
    docstrings = show.read_docstrings(Throttle)
    for name, option in Throttle.model_fields.items():
        assert f"| `{option.alias}` | {' '.join(docstrings[name].split())}" in text
    for policy in Policy:
        assert f"| `{policy}` | " in text


def test_every_measured_value_is_documented() -> None:
    text = (DOCS / "site-admin" / "throttles.md").read_text()
    for name, meaning in MEASURED.items():
        assert f"| `{name}` | {meaning}" in text
