"""What an ARC CE says of its queues. Source: OGF, GLUE 2.0, ComputingShare and ComputingManager."""

from collections.abc import Iterator, Mapping
from typing import Any

from pilotage.fabric.batch.arc.rest import Item
from pilotage.fabric.batch.batch_system import Capacity
from pilotage.fabric.batch.errors import BatchSystemAway

_PATH = ("Domains", "AdminDomain", "Services", "ComputingService")


def capacity_of(document: Item) -> Mapping[str, Capacity]:
    """The queues by name.

    GLUE counts the cores of the whole CE, free ones for each queue; a queue that does not take jobs has none.

    Raises:
        BatchSystemAway: The document has no queue: it is not made yet, or not whole.
    """
    service: Any = document
    for name in _PATH:
        service = service.get(name) if isinstance(service, dict) else None
    if not isinstance(service, dict):
        raise BatchSystemAway(f"the CE does not say what it has, no {'/'.join(_PATH)}")
    cores = sum(_number(each, "TotalSlots") for each in _all(service.get("ComputingManager")))
    return {
        str(share.get("MappingQueue") or share.get("Name")): _of_share(share, cores)
        for share in _all(service.get("ComputingShare"))
    }


def _of_share(share: Item, cores: int) -> Capacity:
    is_open = share.get("ServingState") == "production"
    return Capacity(
        cores=cores * is_open,
        free_cores=min(_number(share, "FreeSlots"), cores) * is_open,
        waiting=_number(share, "WaitingJobs") + _number(share, "PreLRMSWaitingJobs"),
        running=_number(share, "RunningJobs"),
    )


def _all(found: object) -> Iterator[Item]:
    """What is one object, or a list of them."""
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, dict):
            yield each


def _number(item: Item, name: str) -> int:
    said = str(item.get(name, ""))
    return int(said) if said.isdecimal() else 0
