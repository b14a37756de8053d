"""Reading single parameters: is the name meant, is the value one."""

from dataclasses import dataclass, field
from sys import intern

from cs_config import admission, known_parameters
from cs_config.levels import Parameter
from cs_config.sections import Leaf
from requirements.errors import InvalidInput
from requirements.problem import Problem
from requirements.values import Value, as_value, fold


@dataclass(slots=True, kw_only=True)
class ParameterReader:
    """Reads parameters and gathers what is wrong with them, and the VOs that they name."""

    file: str
    declared: frozenset[str]  #: folded names that the operations declare: meant as they are spelled
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    vos: set[str] = field(default_factory=set)  #: lower case
    checks: frozenset[str] = admission.DEFAULT_CHECKS  #: folded names of attributes that are expressions
    _warned: set[str] = field(default_factory=set)

    def read(
        self, into: dict[str, Parameter | None], name: str, leaf: Leaf, *, path: str, level: str
    ) -> None:
        """Put the parameter under its folded name, None for an empty value, nothing if it is wrong."""
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
            self.vos.update(fold(str(vo)) for vo in (value if isinstance(value, tuple) else (value,)))
        into[folded] = Parameter(
            name=name, value=value, level=level, below=path, file=self.file, line=leaf.line
        )

    def error(self, path: str, line: int, message: str, suggestion: str | None = None) -> None:
        """Remember something that is wrong."""
        problem = Problem(path=path, message=message, suggestion=suggestion, file=self.file, line=line)
        self.errors.append(problem)

    def is_name(self, name: str, path: str, line: int) -> bool:
        """Whether it can be the name of a parameter, or the problem; a slip of the pen is one as well."""
        if not name.strip() or name != name.strip() or "/" in name or not name.isprintable():
            self.error(path, line, f"{name!r} is no name of a parameter")
            return False
        self._check_name(name, fold(name), path, line)
        return True

    def value(self, leaf: Leaf, path: str, folded: str) -> Value | None:
        """The value, fit for a known parameter of this folded name; None, and a problem, if it is none."""
        try:
            value = as_value(leaf.value, path)
        except InvalidInput as error:
            for problem in error.problems:
                self.error(problem.path, leaf.line, problem.message)
            return None
        if fault := known_parameters.fault(folded, value):
            self.error(path, leaf.line, fault)
            return None
        if folded in self.checks or folded in admission.EXPRESSIONS:
            return self._expression(value, path, leaf.line)
        return value

    def _expression(self, value: Value, path: str, line: int) -> Value | None:
        try:
            admission.read(value, path)
        except InvalidInput as error:
            for problem in error.problems:
                self.error(path, line, problem.message, problem.suggestion)
            return None
        return value

    def _check_name(self, name: str, folded: str, path: str, line: int) -> None:
        if known_parameters.is_known(folded) or folded in self.declared:
            return
        meant = known_parameters.meant(name)
        if meant is None:
            return
        suggestion, surely = meant
        if surely:
            self.error(path, line, "unknown parameter", suggestion)
        elif folded not in self._warned:
            self._warned.add(folded)
            message = "not a parameter that the system knows (kept as the site's own)"
            problem = Problem(path=path, message=message, suggestion=suggestion, file=self.file, line=line)
            self.warnings.append(problem)
