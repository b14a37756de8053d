"""Reading the text of job descriptions: JDL in the ClassAd language, or YAML with the same names.

JSON is YAML.
"""

import re
from collections.abc import Mapping

from optimizers import yaml_jobs
from requirements.classads import parse_ad
from requirements.errors import InvalidInput, InvalidJob
from requirements.problem import Problem
from requirements.source import Source

#: Characters; above it lies no description but a mistake or an attack.
MOST_TEXT = 1_000_000

_COMMENT = re.compile(r"\s*(?:/\*.*?\*/|//[^\n]*|#[^\n]*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"\s*\[?\s*(?:[A-Za-z_][\w.]*|'[^'\n]*')\s*=")
_EMPTY_AD = re.compile(r"\s*\[\s*;?\s*\]\s*")


def read(text: str, file: str | None = None) -> tuple[Mapping[str, object], ...]:
    """The descriptions in a text, each as keywords to values.

    Args:
        text: One JDL; or YAML or JSON: a record, a list of records, or several documents.
        file: Its name, for messages.

    Raises:
        InvalidJob: The text is neither; with line, column and the line itself.
    """
    if fault := _fault(text):
        raise InvalidJob([Problem(path="description", message=fault, file=file)])
    try:
        Source(text=text, path="description", file=file).check_characters()
    except InvalidInput as invalid:
        raise InvalidJob(invalid.problems) from None
    return (read_jdl(text, file),) if is_jdl(text) else yaml_jobs.read(text, file)


def read_jdl(text: str, file: str | None = None) -> Mapping[str, object]:
    """The description in a JDL: `[ Executable = "a"; … ]`, the brackets may be missing.

    Raises:
        InvalidJob: A syntax error, a number that is none, a name twice; with line, column and line.
    """
    try:
        return parse_ad(text, file, "description")
    except InvalidInput as invalid:
        raise InvalidJob(invalid.problems) from None


def is_jdl(text: str) -> bool:
    """Whether a text is in the ClassAd language: it begins with an assignment."""
    rest = text.lstrip("\ufeff")
    while comment := _COMMENT.match(rest):
        rest = rest[comment.end() :]
    return bool(_ASSIGNMENT.match(rest) or _EMPTY_AD.fullmatch(rest))


def _fault(text: str) -> str | None:
    if not text.strip():
        return "is empty"
    if len(text) > MOST_TEXT:
        return f"{len(text)} characters are too many, allowed are {MOST_TEXT}"
    return None
