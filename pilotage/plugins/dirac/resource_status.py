"""ResourceStatus/ResourceStatus: status of sites, CEs and our store, for installations without DIRAC's own.

Clients use no storage element, and SiteDirectors neither site nor CE, without a status. Sites are those of
the configuration; banned ones have the status `Banned`.

Source: DIRAC 9.1, `ResourceStatusClient.py`, `SiteStatus.py`, `ResourceStatus.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pilotage.plugins.dirac import jencode, sandbox_store
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import DiracCall, Method
from requirements.errors import InvalidRequest, Problem
from requirements.values import fold
from taskqueue.db import database
from taskqueue.sites import closures

_KINDS_OF_ACCESS: Final = ("ReadAccess", "WriteAccess", "CheckAccess", "RemoveAccess")
_SITES, _RESOURCES = "SiteStatus", "ResourceStatus"
_ALL: Final = "all"
#: Columns of a table.
_MOST_COLUMNS: Final = 20


def select_statuses(call: DiracCall, table: str, conditions: dict[str, Any]) -> Result:
    """The rows of a table; clients cache all of it. Conditions have no effect."""
    meta = conditions.get("Meta")
    columns = meta.get("columns") if isinstance(meta, dict) else None
    if not isinstance(columns, list) or len(columns) > _MOST_COLUMNS:
        raise InvalidRequest([Problem(path="Meta/columns", message="is no list of columns")])
    rows = {_SITES: _list_sites, _RESOURCES: _list_resources}.get(table, _list_nothing)(call)
    return jencode.ok([[row.get(str(column), "") for column in columns] for row in rows])


def _list_sites(call: DiracCall) -> Iterator[Mapping[str, str]]:
    with database.reading(call.parts.engine) as conn:
        banned = closures.list_closed(conn, now=call.parts.clock())
    for site in sorted(call.parts.live.current.sites):
        status = "Banned" if fold(site) in banned else "Active"
        yield {"Name": site, "ElementType": "Site", "StatusType": _ALL, "Status": status, "VO": _ALL}


def _list_resources(call: DiracCall) -> Iterator[Mapping[str, str]]:
    about = {"Name": sandbox_store.ELEMENT, "ElementType": "StorageElement", "Status": "Active", "VO": _ALL}
    for kind in _KINDS_OF_ACCESS:
        yield {**about, "StatusType": kind}
    for ce in sorted({each.ce for each in call.parts.live.current.levels}):
        yield {**about, "Name": ce, "ElementType": "ComputingElement", "StatusType": _ALL}


def _list_nothing(_: DiracCall) -> Iterator[Mapping[str, str]]:
    return iter(())


METHODS: Final[Mapping[str, Method]] = {"select": select_statuses}
