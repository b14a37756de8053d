"""Plug-ins are tested with the fixtures of the program."""

from tests.integration.conftest import (
    _other_servers_have_time,
    _the_matcher_has_time,
    server,
    service,
)
from tests.integration.pilotage.conftest import (
    _rates_gain_nothing,
    any_engine,
    config_text,
    database_url,
)
from tests.unit.cs_config.conftest import osg_path, osg_text

__all__ = [
    "_other_servers_have_time",
    "_rates_gain_nothing",
    "_the_matcher_has_time",
    "any_engine",
    "config_text",
    "database_url",
    "osg_path",
    "osg_text",
    "server",
    "service",
]
