"""The entries of a glidein factory, from whichever file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pilotage.plugins.formats import gatekeepers
from requirements.values import fold

_RSL_QUEUE: Final = re.compile(r"""\(\s*queue\s*=\s*["']?([^()"'\s]+)["']?\s*\)""")
#: The end of a gatekeeper of CREAM, `ce.example.org:8443/cream-pbs-long` or, as HTCondor has it,
#: `https://ce.example.org:8443/ce-cream/services/CREAM2 pbs long`.
_CREAM_QUEUE: Final = re.compile(r"(?:/cream-\w+-|/services/CREAM2?\s+\w+\s+)(\S+)\s*$")
_QUOTED: Final = re.compile(r'"([^"]*)"')
#: A number of glideins; more digits are no number that somebody means.
COUNT: Final = re.compile(r"[0-9]{1,12}")
#: Numbers of glideins, in total and idle, as our parameters.
TOTAL: Final = "glideins"
IDLE: Final = "idle"
LIMIT_PARAMETERS: Final = {TOTAL: "MaxTotalJobs", IDLE: "MaxWaitingJobs"}
#: The section with the attributes of an entry, and that with those of its glideins' submission.
ATTRIBUTES: Final = "attrs"
SUBMIT: Final = "submit_attrs"
RSL: Final = "rsl"
#: The attribute that lists the allowed VOs.
VOS: Final = "GLIDEIN_Supported_VOs"
SYSTEM: Final = "GLIDEIN_REQUIRED_OS"
WHOLE_NODE: Final = "+WantWholeNode"
#: Processors of a glidein that takes what it finds.
ESTIMATE: Final = "GLIDEIN_ESTIMATED_CPUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryEntry:
    """An entry of a factory: a batch queue to which it submits glideins."""

    name: str
    site: str = ""  #: default, if no attribute names another
    host: str = ""  #: host of its gatekeeper
    endpoint: str = ""  #: host and port, where the port is not the usual one
    grid_type: str = ""
    enabled: str = "True"  #: as written
    queue: str = ""  #: of the batch system, where it is no attribute
    attributes: Mapping[str, str] = field(default_factory=dict)
    submit: Mapping[str, str] = field(default_factory=dict)  #: attributes of the submission of glideins
    limits: Mapping[str, str] = field(default_factory=dict)  #: `glideins` in total, and those `idle`
    unread: tuple[str, ...] = ()  #: possible restrictions that cannot be read, each with its value
    left_out: tuple[str, ...] = ()  #: keys beside all these

    def attribute(self, name: str) -> str:
        """The value of an attribute, whose name is compared without case; empty if missing."""
        every = (*self.attributes.items(), *self.submit.items())
        return next((value for each, value in every if fold(each) == fold(name)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Factory:
    """What a text says of a factory."""

    entries: Sequence[FactoryEntry]
    left_out: Sequence[str] = ()  #: keys that belong to no entry


def find_queue(rsl: str, gatekeeper: str) -> str:
    """The queue of the batch system that the RSL or the end of a gatekeeper names; empty if neither does."""
    found = _RSL_QUEUE.search(rsl) or _CREAM_QUEUE.search(gatekeeper)
    return found[1] if found else ""


def strip_quotes(text: str) -> str:
    """A value without the quotes around it that HTCondor wants of texts, `"long"`."""
    found = _QUOTED.fullmatch(text)
    return found[1] if found else text


def find_endpoint(gatekeeper: str) -> str:
    """Host and port of a gatekeeper; empty where the port is a usual one."""
    return gatekeepers.find_endpoint(_CREAM_QUEUE.sub("", gatekeeper))


def is_beyond_queue(rsl: str) -> bool:
    """Whether it states more than the queue."""
    return bool(_RSL_QUEUE.sub("", rsl).strip())
