"""What a director gives to a batch system: one executable text that holds a whole pilot."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from pilotage.fabric.node_script import NodeScript


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotScript:
    """What one pilot is to know."""

    url: str  #: of the service
    stamp: str
    secret: str = field(repr=False)  #: to be exchanged for its token, once
    queue: str = ""  #: `Site/CE/Queue`; empty where a broker picks it
    landings: Mapping[str, str] = field(default_factory=dict)  #: what it may be then, by batch queue
    pools: tuple[str, ...] = ()  #: ids of SubmitPools to serve; empty: it asks
    authorities: str | None = None  #: CA certificates (PEM); None: those of the host
    words: tuple[str, ...] = ()  #: further arguments of `pilotage pilot`; anybody on the host can read them


def text(script: PilotScript, zipapp: bytes) -> str:
    """The script: ASCII, with lines that every batch system takes.

    Args:
        script: What the pilot is to know.
        zipapp: The pilot itself, `pilot.bundle.content()`.
    """
    return NodeScript(
        name="pilot",
        about="A pilot. Its secret is good for one start: a second one ends at once and touches nothing.",
        program="pilot.pyz",
        words=_words(script),
        files={**_files(script), "pilot.pyz": zipapp},
    ).text()


def _files(script: PilotScript) -> Mapping[str, bytes]:
    files = {"secret": script.secret.encode()}
    if script.pools:
        files["pools"] = "\n".join(script.pools).encode()
    if script.landings:
        files["landings.json"] = json.dumps(dict(script.landings)).encode()
    if script.authorities is not None:
        files["authorities.pem"] = script.authorities.encode()
    return files


def _words(script: PilotScript) -> list[str]:
    """The arguments of the pilot as words of the shell."""
    named = {"--url": script.url, "--stamp": script.stamp}
    if script.queue:
        named |= dict(zip(("--site", "--ce", "--queue"), script.queue.split("/"), strict=True))
    words = [shlex.quote(f"{name}={value}") for name, value in named.items()]
    words.append('--secret-file="$area/secret"')
    if script.pools:
        words.append('--pools="@$area/pools"')
    if script.landings:
        words.append('--landings="$area/landings.json"')
    if script.authorities is not None:
        words.append('--ca="$area/authorities.pem"')
    return words + [shlex.quote(word) for word in script.words]
