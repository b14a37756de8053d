"""The templates, with what they may call."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pilotage.service.pages import assets, filters

_TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    """All templates: everything is escaped, and a name that nobody gave is an error."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    made.filters |= {
        "when": filters.when,
        "duration": filters.duration,
        "count": filters.count,
        "share": filters.share,
    }
    made.globals |= {"asset": assets.address}
    return made
