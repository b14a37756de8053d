"""What an ARC CE is told of a job. Source: EMI, Activity Description Language (ADL) 1.0."""

import math
import re
from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from pilotage.fabric.batch.batch_system import BatchJob, Resources
from pilotage.fabric.batch.errors import SubmissionRefused

_NAMESPACE = "http://www.eu-emi.eu/es/2010/12/adl"
_MEGABYTE = 1 << 20
_ENVIRONMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*")
#: What the job needs before it starts, its program first.
INPUTS = ("wrapper", "job")
#: What is kept of it when it has ended.
OUTPUTS = ("out", "err", "exit")


def describe(job: BatchJob, environments: Sequence[str]) -> bytes:
    """A job as ADL: data only, whatever its values are.

    Args:
        job: Its stamp becomes its name.
        environments: Runtime environments, each with its options after it, besides those of the job's flags.

    Raises:
        SubmissionRefused: It asks for what ARC has no word for.
    """
    root = Xml.Element("ActivityDescription", xmlns=_NAMESPACE)
    _add(_add(root, "ActivityIdentification"), "Name", job.stamp)
    _add(_add(_add(root, "Application"), "Executable"), "Path", INPUTS[0])
    resources = _add(root, "Resources")
    for each in (*environments, *job.flags):
        _environment(resources, each, job.stamp)
    _ask(resources, job.resources, job.stamp)
    _add(resources, "QueueName", job.queue)
    staging = _add(root, "DataStaging")
    for name in INPUTS:
        file = _add(staging, "InputFile")
        _add(file, "Name", name)
        _add(file, "IsExecutable", "true")
    for name in OUTPUTS:
        _add(_add(staging, "OutputFile"), "Name", name)
    text: bytes = Xml.tostring(root, encoding="utf-8")
    return text


def _ask(resources: Xml.Element, asked: Resources, stamp: str) -> None:
    if asked.gpus:
        raise SubmissionRefused(
            f"{stamp}: asks for {asked.gpus} GPUs; ARC has no word for it: name a runtime environment of the"
            " CE in the flags, such as 'ENV/GPU 1', or a queue that has them"
        )
    if asked.memory is not None:
        each = math.ceil(asked.memory / asked.cores)
        _add(resources, "IndividualPhysicalMemory", str(each * _MEGABYTE))
    if asked.wall_time is not None:
        _add(resources, "WallTime", str(asked.wall_time))
    slots = _add(resources, "SlotRequirement")
    _add(slots, "NumberOfSlots", str(asked.cores))
    _add(slots, "SlotsPerHost", str(asked.cores))
    if asked.whole_node:
        _add(slots, "ExclusiveExecution", "true")


def _environment(resources: Xml.Element, flag: str, stamp: str) -> None:
    name, *options = flag.split() or [""]
    if not _ENVIRONMENT.fullmatch(name) or not all(each.isprintable() for each in options):
        raise SubmissionRefused(
            f"{stamp}: {flag!r} is no runtime environment; flags of an ARC CE are such, with their options:"
            " 'ENV/GPU 1'"
        )
    environment = _add(resources, "RuntimeEnvironment")
    _add(environment, "Name", name)
    for each in options:
        _add(environment, "Option", each)


def _add(parent: Xml.Element, name: str, text: str | None = None) -> Xml.Element:
    child = Xml.SubElement(parent, name)
    child.text = text
    return child
