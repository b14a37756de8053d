"""The parameters of a resource that have a meaning to the system, their allowed values, and their reader.

Any other name is the site's own; a name that is almost a known one is treated as a misspelling.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache, partial
from itertools import chain
from sys import intern
from typing import Any, Final

from cs_config.options import bounds
from cs_config.source.sections import Leaf, LineOrigins
from cs_config.tree import admission
from cs_config.tree.address import NAME, is_slip
from cs_config.tree.inheritance import Parameter, as_tuple
from requirements import versions
from requirements.classad.restrictions import version_of
from requirements.errors import InvalidInput, Problem, did_you_mean
from requirements.measured_values import MEASURED
from requirements.quantities import QUANTITIES, VERSIONS, SlotQuantity
from requirements.values import (
    LOSING_ZEROS,
    Value,
    advise_quotes,
    as_value,
    find_excess,
    fold,
    format_value,
)

_LIKE_COUNT = re.compile("[0-9]{1,9}")
_NUMBER = re.compile(r"(?<![\w.])[\d.]+(?![\w.])")


class VoRight(StrEnum):
    """The right of a VO's admin to set a parameter for the VO, below `VOs/<vo>`."""

    SET = "set"  #: it describes what jobs of the VO can use
    LOWER = "lower"  #: it limits the VO at the place
    NONE = "none"  #: it decides on access, or on how the site's batch system is used


class Zero(StrEnum):
    """What the number 0 of a limit or size is."""

    COUNTS = "counts"  #: nothing may be used there
    STATES_NONE = "states none"  #: nobody filled it in, as in a placeholder


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownParameter:
    """A parameter with a meaning to the system."""

    name: str
    right: VoRight
    allowed: str  #: for the message
    fits: Callable[[Value], bool]
    meaning: str
    zero: Zero | None = None  #: None: it is neither a limit nor a size


def _is_amount(value: Value, most: int, least: float = 0) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_count(value: Value, most: int) -> bool:
    return isinstance(value, int) and _is_amount(value, most)


def _are_words(value: Value) -> bool:
    """Whether names are without commas: `a, b` would be a single name that does not exist."""
    return all(isinstance(item, str) and item.strip() and "," not in item for item in as_tuple(value))


def _are_names(value: Value) -> bool:
    return all(isinstance(item, str) and NAME.fullmatch(item) for item in as_tuple(value))


def _are_nodes(value: Value) -> bool:
    if not isinstance(value, str):
        return _is_count(value, bounds.NODES)
    low, dash, high = value.partition("-")
    numbers = (low, high) if dash else (low,)
    return all(_LIKE_COUNT.fullmatch(each) and int(each) <= bounds.NODES for each in numbers)


def _list_parameters(
    right: VoRight,
    allowed: str,
    fits: Callable[[Value], bool],
    zero: Zero | None = None,
    /,
    **meanings: str,
) -> Iterator[KnownParameter]:
    for name, meaning in meanings.items():
        yield KnownParameter(name=name, right=right, allowed=allowed, fits=fits, meaning=meaning, zero=zero)


def _amounts(
    right: VoRight, unit: str, most: int, zero: Zero | None = Zero.STATES_NONE, /, **meanings: str
) -> Iterator[KnownParameter]:
    allowed = f"a number of {unit} from 0 to {most}"
    return _list_parameters(right, allowed, partial(_is_amount, most=most), zero, **meanings)


def _counts(
    right: VoRight, most: int, zero: Zero | None = Zero.COUNTS, /, **meanings: str
) -> Iterator[KnownParameter]:
    allowed = f"a whole number from 0 to {most}"
    return _list_parameters(right, allowed, partial(_is_count, most=most), zero, **meanings)


def _texts(right: VoRight, **meanings: str) -> Iterator[KnownParameter]:
    return _list_parameters(right, "a text", lambda value: isinstance(value, str), **meanings)


def _flags(right: VoRight, **meanings: str) -> Iterator[KnownParameter]:
    return _list_parameters(right, "true or false", lambda value: isinstance(value, bool), **meanings)


def _name_quantity(quantity: SlotQuantity) -> Iterator[KnownParameter]:
    meanings = {
        quantity.other_parameter: f"the same as {quantity.keyword}, which comes before it",
        quantity.keyword: f"{quantity.keyword} that a job may use",
    }
    return _counts(VoRight.LOWER, quantity.most, **meanings)


KNOWN = (
    *_amounts(
        VoRight.SET,
        "MB",
        bounds.MEGABYTES,
        MaxRAM="memory that a job may use",
        MaxRAMPerCore="memory of a slot for each of its processors, where MaxRAM is not stated",
        MaxScratch="local disk that a job may use",
    ),
    *_amounts(
        VoRight.SET,
        "seconds",
        bounds.QUEUE_TIME,
        CPUTime="CPU time that a job may use; comes before maxCPUTime",
        maxWallClockTime="time that a job may take",
    ),
    *_amounts(
        VoRight.SET,
        "seconds",
        bounds.SECONDS,
        None,
        expiry_time="how long its dynamic attributes count after update_time",
    ),
    *_amounts(
        VoRight.SET,
        "seconds",
        bounds.MOMENT,
        None,
        update_time="when its dynamic attributes were true, since the epoch",
    ),
    *_amounts(
        VoRight.SET,
        "minutes",
        bounds.QUEUE_TIME,
        maxCPUTime="CPU time limit of the batch queue, where CPUTime is not stated; times SI00 / 250",
    ),
    *_amounts(
        VoRight.SET,
        "normalised seconds in a second",
        bounds.POWER,
        CPUNormalizationFactor="power of a processor, by which pilots offer CPU time",
        CPUPowerDB12="DB12 power of a core, where CPU time is not normalised; without it pilots measure it",
    ),
    *_amounts(
        VoRight.SET,
        "old benchmark units",
        bounds.SI00,
        SI00="speed of its processors, 250 is the reference; counts with maxCPUTime, or in Requirements",
    ),
    *_counts(
        VoRight.LOWER, bounds.PROCESSORS, Zero.STATES_NONE, NumberOfProcessors="processors that a job may use"
    ),
    *chain.from_iterable(map(_name_quantity, QUANTITIES)),
    *_counts(
        VoRight.LOWER,
        bounds.JOBS,
        MaxTotalJobs="pilots there, waiting and running",
        MaxWaitingJobs="pilots there that wait",
    ),
    *_counts(
        VoRight.NONE,
        bounds.JOBS,
        None,
        MoUTierLevel="tier of the site in its grid, shown to clients of DIRAC",
    ),
    *_list_parameters(
        VoRight.SET,
        f"a number or a range, up to {bounds.NODES}: 4 or 1-4",
        _are_nodes,
        Zero.STATES_NONE,
        NumberOfNodes="nodes of a job; only read by Requirements of jobs",
    ),
    *_flags(VoRight.LOWER, Enabled="false takes it and all below out"),
    *_flags(VoRight.NONE, WholeNode="a pilot has its node for itself"),
    *_texts(
        VoRight.SET,
        Name="for people",
        Country="for people",
        Description="for people",
        Architecture="of its processors, as uname -m prints it: x86_64",
    ),
    *_list_parameters(
        VoRight.SET,
        f"any value, since sites had these names for what they liked; a number from 0 to {bounds.MEGABYTES}",
        lambda value: not isinstance(value, int | float) or 0 <= value <= bounds.MEGABYTES,
        Zero.STATES_NONE,
        GPUVendor="vendor of its GPUs: nvidia",
        GPUArchitecture="architecture of its GPUs: sm_89; another form counts only in Requirements",
        GPUMemory="MB of memory of each of its GPUs, a number",
        GPURuntime="version of the runtime of its GPUs, such as CUDA: 12.4",
    ),
    *_list_parameters(
        VoRight.SET,
        f"a number from {bounds.LEAST_HEPSCORE} to {bounds.HEPSCORE}",
        partial(_is_amount, most=bounds.HEPSCORE, least=bounds.LEAST_HEPSCORE),
        Zero.STATES_NONE,
        HEPScore23="HEPScore23 of a core, by which usage records are normalised",
    ),
    *_texts(
        VoRight.NONE,
        CEType="kind of the CE; a director with from_tree uses the system of this name",
        Endpoint="address of the CE, if its name is not enough; for directors with from_tree",
        CEQueueName="the same as BatchQueue, which comes before it",
        BatchQueue="name of the queue in the batch system, if it is another; for directors with from_tree",
        SubmitOptions="flags added to the submit command; for directors with from_tree",
    ),
    *_list_parameters(
        VoRight.SET,
        "a text or a list of texts: [one, two]",
        _are_words,
        Platform="platforms that its nodes run",
        OS="operating systems of its nodes; only read by Requirements of jobs",
        JobType="types of grid jobs that a job manager handles there",
        Tag="what it offers; a job may require it",
        RequiredTag="what a job must require to run here; it is offered as well, as by Tag",
        SE="storage elements of the site",
        CloseSE="storage elements next to it; only read by Requirements of jobs",
        Mail="addresses of the contacts, for people",
        Expressions="its parameters whose text is a ClassAd expression, for export",
    ),
    *_list_parameters(
        VoRight.NONE,
        "a ClassAd expression",
        lambda value: isinstance(value, bool | str),
        Requirements="must be true of a job to be handed out here",
    ),
    *_list_parameters(
        VoRight.SET,
        "a ClassAd expression or a number",
        lambda value: isinstance(value, int | float | str) and not isinstance(value, bool),
        Rank="orders queues for jobs that state no Rank, the highest first",
    ),
    *_list_parameters(
        VoRight.NONE,
        "names of attributes that are expressions: [AuthorizationCheck]",
        _are_names,
        Checks="must all be true of a job; AuthorizationCheck and CloseOutputSECheck if unset",
    ),
    *_list_parameters(
        VoRight.NONE, "names of VOs: [atlas, cms]; an empty list is nobody", _are_names, VO="who may use it"
    ),
)

_BY_FOLD = {fold(known.name): known for known in KNOWN}
#: Names that sites had for their own in release 1.0, with any value; they have others like them, `CPUVendor`.
_ONCE_FREE = frozenset({"GPUVendor", "GPUArchitecture", "GPUMemory", "GPURuntime", "HEPScore23"})
_ONCE_FREE_FOLDED = frozenset(map(fold, _ONCE_FREE))
#: Resemble ours and are read: names of the schema (see `glue`), and what pilots measure of the system.
_SCHEMA: Final = "glue"
_MEASURED: Final = frozenset({"osname", "osversion"})
#: Measured values that sites advertise.
_MEASURES: Final = frozenset(map(fold, MEASURED))
#: Names that may be misspelled.
_NAMES = tuple(known.name for known in KNOWN if known.name not in _ONCE_FREE)


#: Parts of the folded names of parameters that expressions compare as versions.
_OF_VERSIONS = ("version", "release")
#: Folded names that sites have for versions of what their nodes have. A number there is warned of, but stays
#: one when it is imported again: jobs may compare with it.
SOFTWARE: Final = frozenset(
    {
        *("gpudriver", "nvidiadriver", "cudadriver", "driver", "cuda", "cudnn", "rocm"),
        *("kernel", "glibc", "libc", "glibcxx", "middleware", "cvmfs", "singularity", "apptainer"),
        *(
            "podman",
            "docker",
            "python",
            "python3",
            "java",
            "perl",
            "julia",
            "gcc",
            "clang",
            "llvm",
            "compiler",
        ),
        *("openmpi", "mpich", "mpi", "root", "geant4", "cmake", "condor", "htcondor", "slurm", "dirac"),
    }
)


def is_version(folded: str) -> bool:
    """Whether a parameter of this name is a version: a text when imported, even if it looks like a number."""
    return folded in VERSIONS or any(word in folded for word in _OF_VERSIONS)


def is_like_version(folded: str) -> bool:
    """Whether a number under this name is worth a warning: it is a version, or probably one."""
    return folded in SOFTWARE or is_version(folded)


def is_measure(folded: str) -> bool:
    """Whether a number under this name is no version: the system or a schema has it, or it is measured."""
    return folded in _BY_FOLD or folded.startswith(_SCHEMA) or folded in _MEASURES


def as_version(value: Any) -> Any:
    """A version, or a list of them, with each number as its shortest text."""
    return list(map(version_of, value)) if isinstance(value, list) else version_of(value)


def find_fault(folded: str, value: Value) -> str | None:
    """The problem of the value of a known parameter; None if it is valid, or the name is unknown."""
    known = _BY_FOLD.get(folded)
    if known is None or known.fits(value):
        return None
    quoted = tuple(map(str, value)) if isinstance(value, tuple) else str(value)
    advice = "; write a number that is a name in quotes" if known.fits(quoted) else ""
    return (
        f"{format_value(value) or 'an empty list'!r} is not allowed here, allowed is {known.allowed}{advice}"
    )


def find_right(folded: str) -> VoRight:
    """The right of a VO to set a parameter for itself; a name of the site's own is free."""
    known = _BY_FOLD.get(folded)
    return VoRight.SET if known is None else known.right


def find_zero(folded: str) -> Zero | None:
    """What 0 of a parameter is; None: it is neither a limit nor a size."""
    known = _BY_FOLD.get(folded)
    return None if known is None else known.zero


def is_known(folded: str) -> bool:
    """Whether the system uses a parameter of this name."""
    return folded in _BY_FOLD


@lru_cache(maxsize=65536)
def suggest_parameter(name: str) -> tuple[str, bool] | None:
    """The known parameter that an unknown name resembles, and whether it is almost certainly meant."""
    slip = next((known for known in _NAMES if is_slip(name, known)), None)
    if slip is not None:
        return slip, True
    close = did_you_mean(name, _NAMES)
    return None if close is None else (close, False)


@dataclass(slots=True, kw_only=True)
class ParameterReader:
    """Reads parameters and collects their problems and the VOs that they name."""

    file: str
    origins: LineOrigins  #: of the lines that parameters are written in
    declared: frozenset[str]  #: folded names that the operations declare: never misspellings
    text: str  #: that the lines are of
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    excesses: list[Problem] = field(default_factory=list)  #: values that only earlier releases took
    vos: set[str] = field(default_factory=set)  #: lower case
    checks: frozenset[str] = admission.DEFAULT_CHECKS  #: folded names of attributes that are expressions
    _warned: set[str] = field(default_factory=set)
    _lines: list[str] = field(default_factory=list)

    def read(
        self, into: dict[str, Parameter | None], name: str, leaf: Leaf, *, path: str, level: str
    ) -> None:
        """Add the parameter under its folded name: None for an empty value, nothing if it is invalid."""
        folded, below = intern(fold(name)), f"{path}/{name}"
        if not self.is_name(name, below, leaf.line):
            return
        if leaf.value is None:
            into[folded] = None
            return
        value = self.value(leaf, below, folded)
        if value is None:
            return
        if folded == "vo":
            self.vos.update(fold(str(vo)) for vo in as_tuple(value))
        file, line = self.origins.find(leaf.line)
        into[folded] = Parameter(name=name, value=value, level=level, below=path, file=file, line=line)

    def error(self, path: str, line: int, message: str, suggestion: str | None = None) -> None:
        """Record a problem."""
        self.errors.append(self._problem(path, line, message, suggestion))

    def _problem(self, path: str, line: int, message: str, suggestion: str | None) -> Problem:
        return Problem(path=path, message=message, suggestion=suggestion, file=self.file, line=line)

    def is_name(self, name: str, path: str, line: int) -> bool:
        """Whether a name is valid for a parameter; if not, or if it is misspelled, record a problem."""
        if not name.strip() or name != name.strip() or "/" in name or not name.isprintable():
            self.error(path, line, f"{name!r} is not a valid name of a parameter")
            return False
        folded = fold(name)
        if folded not in _BY_FOLD and folded not in self.declared:
            self._check_spelling(name, folded, path, line)
        return True

    def _check_spelling(self, name: str, folded: str, path: str, line: int) -> None:
        suggestion, surely = suggest_parameter(name) or (None, False)
        if surely:
            self.error(path, line, "unknown parameter", suggestion)
        elif folded in _MEASURED or folded.startswith(_SCHEMA):
            return
        elif suggestion and folded not in self._warned:
            self._warned.add(folded)
            message = "not a parameter of the system (kept as the site's own)"
            self.warnings.append(self._problem(path, line, message, suggestion))

    def value(self, leaf: Leaf, path: str, folded: str) -> Value | None:
        """The value in the form of the known parameter; None, and a problem, if it is invalid."""
        try:
            value = as_value(leaf.value, path)
        except InvalidInput as error:
            for problem in error.problems:
                self.error(problem.path, leaf.line, problem.message)
            return None
        if fault := find_fault(folded, value):
            if folded in _ONCE_FREE_FOLDED:
                self.excesses.append(self._problem(path, leaf.line, fault, None))
                return value
            self.error(path, leaf.line, fault)
            return None
        if folded in self.checks or folded in admission.EXPRESSIONS:
            try:
                admission.read_expression(value, path)
            except InvalidInput as error:
                for problem in error.problems:
                    self.error(path, leaf.line, problem.message, problem.suggestion)
                return None
        else:
            self.check_comparison(value, path, folded, leaf.line)
        return value

    def check_comparison(self, value: Value, path: str, folded: str, line: int) -> None:
        """Record a value that is too long for expressions, and a number that may be a version."""
        if excess := find_excess(value):
            self.excesses.append(self._problem(path, line, excess, None))
        numbers = [each for each in as_tuple(value) if isinstance(each, float)]
        if is_like_version(folded):
            self.warnings += (self._problem(path, line, advise_quotes(each), None) for each in numbers)
        elif numbers and not (is_measure(folded) or folded in self.declared or folded in self._warned):
            written = self._find_written(numbers, line)
            if written is not None:
                self._warned.add(folded)  # once is enough: there may be as many as queues
                self.warnings.append(self._problem(path, line, versions.advise_zeros(written), None))

    def _find_written(self, numbers: Sequence[float], line: int) -> str | None:
        """The text of the first of these numbers that has last zeros; None: no text has.

        The items of a list may stand in the lines after that of the name.
        """
        if not self._lines:
            self._lines += self.text.split("\n")
        texts = (text.partition(" #")[0] for text in self._lines[line - 1 : line + len(numbers)])
        written = (each[0] for text in texts for each in _NUMBER.finditer(text))
        losing = filter(LOSING_ZEROS.fullmatch, written)
        return next((each for each in losing if float(each) in numbers), None)
