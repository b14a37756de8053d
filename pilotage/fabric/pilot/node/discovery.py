"""Discovery of the slot and its node: facts and tags from the site's probes, and the end of the slot.

Each executable of the probe directory prints lines: `name=value` is a fact, a single word is a tag. The
output of one that fails, takes too long or prints anything else is ignored; the fact `ProbesFailed` lists it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable

from pilotage.fabric.pilot.node import db12, host_features, slot_limits
from pilotage.fabric.pilot.node import facts as node_facts
from pilotage.fabric.pilot.node.batch_job import BatchResources, read_resources
from pilotage.fabric.pilot.node.commands import read_output, run_command
from pilotage.fabric.pilot.node.db12 import PowerCache
from pilotage.fabric.pilot.node.gpus import are_allotted
from pilotage.fabric.pilot.settings import Slot

log = logging.getLogger(__name__)

#: Fact that lists the failed probes.
FAILED = "ProbesFailed"
#: Timeout of a probe in seconds.
PATIENCE = 30.0
#: Limits: bytes and lines of a probe's output, probes, characters of all facts and tags together. They stay
#: below the service's limits.
_LONGEST, _MOST_LINES, _MOST_PROBES, _MOST_IN_ALL = 4096, 50, 50, 6000
_NAME = re.compile(r"[A-Za-z][\w.:/+-]{0,99}", re.ASCII)
_OURS = "PILOTAGE_"


class _Failure(Exception):
    """A probe failed; the message is the reason."""


@dataclass(frozen=True)
class ProbedFacts:
    """Facts and tags from probes."""

    facts: dict[str, object] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


def run_probes(directory: Path, environment: Mapping[str, str], *, patience: float = PATIENCE) -> ProbedFacts:
    """Run all executables of a directory in the order of their names; later values replace earlier ones.

    The pilot's own variables (PILOTAGE_*) are not passed on; `patience` is the timeout of each in seconds.
    """
    seen = {name: value for name, value in environment.items() if not name.startswith(_OURS)}
    said, failed = ProbedFacts(), []
    for probe in _executables(directory):
        try:
            said = _together(said, _read(_output(probe, seen, patience)))
        except (_Failure, OSError) as error:  # noqa: PERF203 - one probe must not stop the others
            log.warning("probe %s: %s", probe.name, error)
            failed.append(f"{probe.name[:40]}: {error}"[:120])
    return replace(said, facts={**said.facts, FAILED: failed}) if failed else said


def _together(said: ProbedFacts, more: ProbedFacts) -> ProbedFacts:
    found = ProbedFacts({**said.facts, **more.facts}, tuple(dict.fromkeys((*said.tags, *more.tags))))
    if len(json.dumps([found.facts, found.tags])) > _MOST_IN_ALL:
        raise _Failure(f"with it all have more than {_MOST_IN_ALL} characters")
    return found


def _executables(directory: Path) -> list[Path]:
    try:
        files = sorted(file for file in directory.absolute().iterdir() if not file.name.startswith("."))
    except OSError as error:
        log.warning("probes: %s", error)
        return []
    found = [file for file in files if file.is_file() and os.access(file, os.X_OK)]
    return found[:_MOST_PROBES]


def _output(probe: Path, environment: Mapping[str, str], patience: float) -> str:
    with tempfile.TemporaryFile() as output:
        try:
            status = run_command([str(probe)], environment, patience, output)
        except subprocess.TimeoutExpired:
            raise _Failure(f"did not end within {patience:g} s") from None
        if status != 0:
            raise _Failure(f"ended with status {status}")
        size = output.seek(0, os.SEEK_END)
        if size > _LONGEST:
            raise _Failure(f"printed {size} bytes, allowed are {_LONGEST}")
        output.seek(0)
        try:
            return output.read().decode("utf-8")
        except UnicodeDecodeError:
            raise _Failure("printed bytes that are no text") from None


def _read(text: str) -> ProbedFacts:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > _MOST_LINES:
        raise _Failure(f"printed {len(lines)} lines, allowed are {_MOST_LINES}")
    facts: dict[str, object] = {}
    tags: list[str] = []
    for line in lines:
        name, equals, value = (part.strip() for part in line.partition("="))
        if not _NAME.fullmatch(name):
            raise _Failure(f"{line[:40]!r} is neither name=value nor a tag")
        if equals:
            facts[name] = _value(value)
        else:
            tags.append(name)
    return ProbedFacts(facts, tuple(tags))


def _value(text: str) -> object:
    """Parse a number, a boolean, null or a list as JSON; anything else is text."""
    try:
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return _printable(text)
    if value is None or all(map(_is_plain, value if isinstance(value, list) else [value])):
        return value
    return _printable(text)


def _is_plain(value: object) -> bool:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return False
    if isinstance(value, float) and value - value != 0:
        return False
    return isinstance(value, (int, float)) or (isinstance(value, str) and value.isprintable())


def _printable(text: str) -> str:
    if not text.isprintable():
        raise _Failure(f"{text[:40]!r} has characters that cannot be printed")
    return text


#: Variables with the end of the slot in seconds since the epoch: Slurm from 23.02 on.
_ENDS = ("SLURM_JOB_END_TIME",)
#: Variables with the length of the slot in seconds: PBS/Torque, OAR. It is counted from the pilot's start.
_LENGTHS = ("PBS_WALLTIME", "OAR_JOB_WALLTIME_SECONDS")
#: Prints the time left of a job, also in a hidden partition, as `[days-][hours:]min:s`.
_SQUEUE = ("squeue", "--noheader", "--all", "--format=%L", "--jobs")
_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
#: Timeout of such a command.
_COMMAND_SECONDS = 15
#: Seconds (three years) beyond which a slot counts as unlimited.
_FOREVER = 3 * 365 * 86_400


def slot_seconds_left(
    environment: Mapping[str, str], now: float, batch: BatchResources | None = None
) -> int | None:
    """Seconds until the slot ends; None: unlimited, or unknown from the batch system."""
    batch = read_resources(environment) if batch is None else batch
    ends = [number - now for name in _ENDS if (number := _variable_number(environment, name))]
    ends += [end - now for end in batch.ends]
    lengths = [number for name in _LENGTHS if (number := _variable_number(environment, name))]
    lengths += batch.seconds
    features = list(_features_left(environment, now))
    known = [
        int(left) for left in (*ends, *lengths) or _ask_slurm(environment) or features if left < _FOREVER
    ]
    known += [
        int(each - now) for each in slot_limits.read_feature(environment, "MACHINEFEATURES", "shutdowntime")
    ]
    return max(1, min(known)) if known else None


def _features_left(environment: Mapping[str, str], now: float) -> Iterator[float]:
    """Seconds left by the features of the job. Source: HSF-TN-2016-02, Machine/Job Features."""
    for length in slot_limits.read_feature(environment, "JOBFEATURES", "wall_limit_secs"):
        for began in slot_limits.read_feature(environment, "JOBFEATURES", "jobstart_secs") or [int(now)]:
            yield began + length - now


def _variable_number(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "").strip()
    return float(text) if text.isdecimal() else None


def _ask_slurm(environment: Mapping[str, str]) -> list[int]:
    """Seconds left; empty if the command fails."""
    job = environment.get("SLURM_JOB_ID")
    if not job:
        return []
    found = _LEFT.fullmatch(read_output((*_SQUEUE, job), environment, _COMMAND_SECONDS).strip())
    if found is None:
        return []
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return [((days * 24 + hours) * 60 + minutes) * 60 + seconds]


def complete_slot(
    slot: Slot,
    environment: Mapping[str, str],
    *,
    now: float,
    measured: Mapping[str, object] | None = None,
    work_dir: Path | None = None,
) -> Slot:
    """Add to the slot what can be found out here; the pilot's own settings take precedence."""
    known: Mapping[str, object] = measured or {}
    tags: tuple[str, ...] = ()
    if measured is None:
        known = node_facts.measure_facts(environment=environment)
        tags = host_features.measure_tags(environment)
    found = run_probes(slot.probes, environment) if slot.probes else ProbedFacts()
    power = db12.sample_power() if slot.measures_cpu else slot.cpu_power
    if slot.measures_cpu:
        log.info("a processor of this node has the power %g", power)
    gpus = _fact_number(known, "GPUs")
    if slot.whole_node:
        slot = replace(
            slot,
            processors=slot.processors or _fact_number(known, "Cores"),
            max_ram=slot.max_ram or _fact_number(known, "Memory"),
        )
    if slot.gpus is None and (slot.whole_node or are_allotted(environment)):
        slot = replace(slot, gpus=gpus)
    batch = read_resources(environment)
    return replace(
        slot,
        lifetime=slot.lifetime or slot_seconds_left(environment, now, batch),
        cpu_power=power,
        limits=replace(slot_limits.measure_limits(environment, batch=batch), gpus=gpus),
        free_disk=None if work_dir is None else slot_limits.free_disk(work_dir),
        tags=tuple(dict.fromkeys((*slot.tags, *found.tags, *tags))),
        facts=node_facts.merge_facts(known, found.facts, slot.facts),
    )


def _fact_number(known: Mapping[str, object], name: str) -> int | None:
    number = known.get(name)
    return number if isinstance(number, int) else None


def read_db12(slot: Slot, now: float) -> float | None:
    """The DB12 power of a core of this node that a pilot has measured before; None: unknown."""
    return PowerCache(_model(slot)).read(now)


def measure_db12(slot: Slot, is_stopped: Callable[[], bool], now: float) -> float | None:
    """The DB12 power of a core; None: it was stopped, or another pilot measures it now."""
    model = _model(slot)
    return PowerCache(model).measure(lambda: db12.run_benchmark(is_stopped, model), now)


def _model(slot: Slot) -> str:
    return str(slot.facts.get("CPUModel") or "")
