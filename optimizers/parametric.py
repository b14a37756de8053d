"""Many jobs from one description: its `Parameters` and what each member puts for them.

Source: DIRAC's parametric jobs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from requirements.classads import Unevaluated
from requirements.errors import InvalidJob
from requirements.problem import Problem
from requirements.values import MAX_INTEGER, Scalar, as_number, fold, normal_number, text_fault

_LISTS = "parameters"
_NUMBERS = {"parameterstart": 0, "parameterstep": 1, "parameterfactor": 1}

#: Values of one member by placeholder: `s` for `%s`, `n` for `%n`, `A` for `%(A)s`.
Member = dict[str, str]


def is_parametric(raw: Mapping[str, object]) -> bool:
    """Whether a description stands for many jobs."""
    return any(_split(name)[0] == _LISTS for name in raw)


def without_parameters(raw: Mapping[str, object]) -> dict[str, object]:
    """The description that all members share, placeholders and all."""
    return {name: value for name, value in raw.items() if _split(name)[0] not in {_LISTS, *_NUMBERS}}


def expand(raw: Mapping[str, object], *, most: int) -> list[Member]:
    """The members of a parametric job, in order.

    `Parameters` is a list of values, or a number of members whose values begin at `ParameterStart` and go
    on with value × `ParameterFactor` + `ParameterStep`. `Parameters.A` is the same for `%(A)s`. `%n` is the
    number of the member, from 0, with leading zeros so that names sort.

    Args:
        raw: The description as read.
        most: The largest number of members, `MaxParametricJobs`.

    Raises:
        InvalidJob: With every problem.
    """
    reader = _Reader(most=most, problems=[])
    columns = {name: reader.column(name, raw) for name in reader.names(raw)}
    reader.check_lengths(columns)
    if reader.problems:
        raise InvalidJob(reader.problems)
    count = max(map(len, columns.values()))
    width = len(str(count))
    numbered = ((f"{row:0{width}d}", row) for row in range(count))
    return [
        {"n": number, **{name: column[row] for name, column in columns.items()}} for number, row in numbered
    ]


def _split(keyword: str) -> tuple[str, str]:
    """`Parameters.A` as ("parameters", "A"); the unnamed one is called `s` after its placeholder."""
    head, _, name = keyword.partition(".")
    return fold(head), name or "s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads the columns of one description and collects what is wrong with them."""

    most: int
    problems: list[Problem]

    def names(self, raw: Mapping[str, object]) -> list[str]:
        """Names of the columns; a start or step without its list is a problem."""
        split = [(keyword, *_split(keyword)) for keyword in raw]
        names = [name for _, head, name in split if head == _LISTS]
        for keyword, head, name in split:
            if head in _NUMBERS and name not in names:
                suffix = "" if name == "s" else f".{name}"
                self._problem(keyword, f"there is no Parameters{suffix} that it would say more about")
        for name in {name for name in names if names.count(name) > 1}:
            self._problem("Parameters", f"{name} is named twice")
        return sorted(set(names))

    def column(self, name: str, raw: Mapping[str, object]) -> list[str]:
        """The values of one parameter, one for each member."""
        stated = {
            _split(keyword)[0]: (keyword, raw[keyword]) for keyword in raw if _split(keyword)[1] == name
        }
        keyword, value = stated.pop(_LISTS)
        if isinstance(value, list | tuple):
            return self._texts(keyword, value)
        count = self._number(keyword, value)
        if not isinstance(count, int) or count < 1:
            self._problem(keyword, f"{_seen(value)}, allowed is a list or a number of jobs, at least 1")
            return []
        if count > self.most:
            return self._too_many(keyword, count)
        numbers = {
            name: self._number(*stated[name]) if name in stated else default
            for name, default in _NUMBERS.items()
        }
        start, step, factor = numbers.values()
        return list(self._progression(keyword, count, start=start, step=step, factor=factor))

    def check_lengths(self, columns: Mapping[str, list[str]]) -> None:
        """Refuse columns of different lengths: which values belong together would be anyone's guess."""
        lengths = {name: len(column) for name, column in columns.items() if column}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} has {length}" for name, length in sorted(lengths.items()))
            self._problem("Parameters", f"all need the same number of values, but {shown}")

    def _texts(self, keyword: str, values: list[object] | tuple[object, ...]) -> list[str]:
        if not values:
            self._problem(keyword, "the list is empty, so there would be no job")
        if len(values) > self.most:
            return self._too_many(keyword, len(values))
        return [self._text(f"{keyword}[{place}]", value) for place, value in enumerate(values)]

    def _text(self, path: str, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self._problem(path, f"{_seen(value)}, allowed is a text or a number")
            return ""
        shown = _shown(value)
        if fault := text_fault(shown):
            self._problem(path, fault)
        return shown

    def _number(self, keyword: str, value: object) -> int | float:
        if isinstance(value, str):
            value = as_number(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._problem(keyword, f"{_seen(value)} is not a number")
            return 0
        return normal_number(value)

    def _progression(
        self, keyword: str, count: int, *, start: float, step: float, factor: float
    ) -> Iterator[str]:
        value = start
        for _ in range(count):
            if not abs(value) <= MAX_INTEGER:
                self._problem(keyword, "its values grow beyond what every program can hold")
                return
            yield _shown(normal_number(value))
            value = value * factor + step

    def _too_many(self, keyword: str, count: int) -> list[str]:
        self._problem(keyword, f"{count} jobs are too many, allowed are {self.most} (MaxParametricJobs)")
        return []

    def _problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path=path, message=message))


def _seen(value: object) -> str:
    return value.text if isinstance(value, Unevaluated) else repr(value)


def _shown(value: Scalar) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
