"""Reading the text of a configuration: YAML without surprises, every name with its line."""

import yaml

from cs_config.events import EnoughError, EventReader, Reading
from requirements.problem import Problem

#: Longer texts are no configuration; a grid of 1,000 queues has 0.4 MB.
MAX_BYTES = 16 * 2**20


def read(source: str | bytes, file: str) -> Reading:
    """The sections of a text; with problems, what could be read beside them."""
    reading = Reading(file=file)
    text = _decoded(source, reading)
    if text is None:
        return reading
    reading.text = text
    try:
        EventReader(reading).read(text)
    except EnoughError:
        pass
    except yaml.MarkedYAMLError as error:
        reading.problems.append(_syntax_problem(error, text, file))
    except yaml.reader.ReaderError as error:
        reading.problems.append(_character_problem(error, text, file))
    return reading


def _decoded(source: str | bytes, reading: Reading) -> str | None:
    """The text in Unicode; None, and a problem, if it is none or holds nothing."""
    text, line = "", None
    message: str | None = None
    if len(source) > MAX_BYTES:
        message = f"{len(source)} bytes are too many, allowed are {MAX_BYTES}"
    elif isinstance(source, str):
        text = source
        message = "the text has characters that are not Unicode" if _has_surrogates(text) else None
    else:
        try:
            text = source.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = source.count(b"\n", 0, error.start) + 1
            message = f"byte 0x{source[error.start]:02x} is not UTF-8, which the file has to be"
    if message is None and not text.strip():
        message = "the file is empty; it needs a section Resources, Operations or Registry"
    if message is None:
        return text
    reading.problems.append(Problem(path="/", message=message, file=reading.file, line=line))
    return None


def _has_surrogates(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text)


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    said = ", ".join(part for part in (error.problem, error.context) if part)
    if mark is None:
        return Problem(path="/", message=f"not YAML: {said}", file=file)
    return Problem(
        path="/",
        message=f"not YAML: {said}",
        file=file,
        line=mark.line + 1,
        column=mark.column + 1,
        excerpt="".join(text.split("\n")[mark.line : mark.line + 1])[:200] or None,
    )


def _character_problem(error: yaml.reader.ReaderError, text: str, file: str) -> Problem:
    position = error.position if isinstance(error.position, int) else 0
    # The C parser counts bytes.
    before = text.encode()[:position]
    message = f"character {error.character!r} is not allowed: {error.reason}"
    return Problem(path="/", message=message, file=file, line=before.count(b"\n") + 1)
