"""A caller as the claims of a token of ours, and back."""

from collections.abc import Mapping

from cs_config.address import QueueAddress
from pilotage.service.callers import Caller, Capability, Role


def of(caller: Caller) -> dict[str, object]:
    """What a token says of its bearer."""
    claims: dict[str, object] = {
        "sub": caller.subject,
        "role": caller.role.value,
        "vos": sorted(caller.vos),
        "user": caller.user,
        "group": caller.group,
        "sites": sorted(caller.sites),
        "queue": str(caller.queue) if caller.queue else None,
        "stamp": caller.stamp,
    }
    said = {name: value for name, value in claims.items() if value}
    if caller.capabilities is not None:  # also if there are none: then it may nothing
        said["capabilities"] = sorted(caller.capabilities)
    return said


def read(claims: Mapping[str, object]) -> Caller:
    """The caller that the claims of a token of ours describe.

    Raises:
        InvalidRequest, KeyError, TypeError, ValueError: We did not write these.
    """
    queue = claims.get("queue")
    stamp = claims.get("stamp")
    return Caller(
        role=Role(str(claims["role"])),
        subject=str(claims["sub"]),
        vos=_names(claims.get("vos", [])),
        user=str(claims.get("user", "")),
        group=str(claims.get("group", "")),
        sites=_names(claims.get("sites", [])),
        queue=QueueAddress.parse(str(queue)) if queue else None,
        stamp=str(stamp) if stamp else None,
        capabilities=_capabilities(claims.get("capabilities")),
    )


def _capabilities(claim: object) -> frozenset[Capability] | None:
    return None if claim is None else frozenset(Capability(name) for name in _names(claim))


def _names(claim: object) -> frozenset[str]:
    if not isinstance(claim, list):
        raise TypeError(f"{claim!r} is no list of names")
    return frozenset(str(name) for name in claim)
