"""Job descriptions from submit files of HTCondor.

Source: the manual of HTCondor 24, `condor_submit`, "Submitting a job" and "Submit file macros".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from cs_config.options import bounds
from pilotage.plugins.formats.job_import import (
    BYTE_ORDER_MARK,
    IMPLIED,
    ImportedJobs,
    Rule,
    apply_rules,
    check_jobs,
    check_literal,
    check_size,
    imply,
    leave_out,
    note_left_out,
    read_count,
    read_memory,
    read_text,
    refuse,
)
from requirements.errors import InvalidJob

_ASSIGNED: Final = re.compile(r"\s*(\+?[A-Za-z_][\w.]*)\s*=\s*(.*?)\s*", re.DOTALL)
_QUEUE: Final = re.compile(r"\s*queue\b(.*)", re.IGNORECASE | re.DOTALL)
_NOT_READ: Final = re.compile(
    r"\s*(?:(?:if|elif|else|endif)\b(?!\s*=)|(?:include|error|warning|use\s+\w+)\s*:|[\w.+]+\s*@=).*",
    re.IGNORECASE | re.DOTALL,
)
_ITEMS: Final = re.compile(
    r"\s*(?P<copies>\d{0,9})\s*(?P<names>[A-Za-z_][\w,\s]*?)??\s*"
    r"(?:\b(?P<kind>in|from|matching)\b\s*(?P<rest>.*))?",
    re.IGNORECASE | re.DOTALL,
)
_MACRO: Final = re.compile(r"\$\((?P<name>[A-Za-z_][\w.]*)(?::(?P<default>[^()]*))?\)")
_PLACEHOLDER: Final = re.compile(r"%\((\w+)\)s")
#: Functions of the value of a macro: parts of a file's name, and a number in a format.
_FUNCTION: Final = re.compile(
    r"\$(?:F(?P<parts>[pdnxq]*)|INT)\((?P<name>\w+)(?:,\s*%0?(?P<width>\d{0,2})d)?\)"
)
_SLICE: Final = re.compile(
    r"\s*\[\s*(-?\d{0,9})\s*(:?)\s*(-?\d{0,9})\s*(:?)\s*(\d{0,9})\s*\]\s*(.*)", re.DOTALL
)
#: The parameter whose values are the words of each job's arguments.
_WORDS: Final = "ArgumentWords"
#: Characters of a value, macros within macros, and macros that are filled for one file, at most.
_LONGEST: Final = 100_000
_DEEPEST: Final = 20
_MOST_FILLED: Final = 100_000
#: Queue statements without jobs that a message names.
_TOLD: Final = 3
_PROCESS: Final = "Process"
#: Macros that differ between the jobs of a file, by what they are called in ours.
_OF_JOBS: Final = {"process": _PROCESS, "procid": _PROCESS, "step": "Step", "row": "Row", "itemindex": "Row"}
_NAMES_OF_NUMBERS: Final = {name: meant.lower() for name, meant in _OF_JOBS.items()}


def _read_words(text: str) -> list[str]:
    """Words in the syntax with quotes around the whole, or in the old one without."""
    if not (len(text) > 1 and text[0] == text[-1] == '"'):
        return text.replace('\\"', '"').split()
    inside = text[1:-1].replace('""', '"')
    words = re.findall(r"(?:[^\s']|'(?:[^']|'')*')+", inside)
    return [re.sub(r"'((?:[^']|'')*)'", lambda quoted: quoted[1].replace("''", "'"), each) for each in words]


def _read_environment(text: str) -> list[str]:
    words = _read_words(text) if text.startswith('"') else [each.strip() for each in text.split(";")]
    found = [each for each in words if each]
    if any("=" not in each for each in found):
        raise ValueError("is no list of NAME=value")
    return found


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _read_list(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _read_outputs(text: str) -> list[str]:
    return [] if text == '""' else _read_list(text)  # no file is to come back


def _read_file(text: str) -> str:
    if text == "/dev/null":
        raise ValueError("what it writes is kept")
    return PurePosixPath(text).name


def _read_priority(text: str) -> int:
    if not 0 <= read_count(text) <= 10:
        raise ValueError("priorities are 0 to 10")
    return int(text)


def _read_remote_image(text: str) -> str:
    return text if "://" in text else f"docker://{text}"


def _require_universe(text: str) -> str:
    if text.lower() not in ("vanilla", "container", "docker", "5"):
        raise ValueError("only programs and containers run here")
    return ""


_ONCE_MORE: Final = leave_out("`pilotage job resubmit` repeats what failed; jobs of lost pilots run again")
_ASKED: Final = leave_out("translate it to Requirements by hand: they are over parameters of queues")

RULES: Final[Mapping[str, Rule]] = {
    "arguments": Rule("Arguments", _read_words),
    "output": Rule("StdOutput", _read_file),
    "error": Rule("StdError", _read_file),
    "environment": Rule("Environment", _read_environment),
    "transfer_output_files": Rule("OutputSandbox", _read_outputs),
    "request_cpus": Rule("NumberOfProcessors", read_count),
    "request_memory": Rule("MinRAM", read_memory),
    "request_gpus": Rule("GPUs", read_count),
    "requestcpus": Rule("NumberOfProcessors", read_count),
    "requestmemory": Rule("MinRAM", read_memory),
    "requestgpus": Rule("GPUs", read_count),
    "allowed_job_duration": Rule("MaxWallClockTime", read_count),
    "+maxruntime": Rule("MaxWallClockTime", read_count),
    "priority": Rule("Priority", _read_priority),
    "batch_name": Rule("JobGroup", _unquote),
    "jobbatchname": Rule("JobGroup", _unquote),
    "+jobbatchname": Rule("JobGroup", _unquote),
    "container_image": Rule("Image"),
    "docker_image": Rule("Image", _read_remote_image),
    "universe": Rule("_universe", _require_universe),
    "log": IMPLIED,
    "should_transfer_files": imply(
        *("yes", "if_needed"), otherwise="files are sent always: jobs share no directory with you"
    ),
    "when_to_transfer_output": imply(
        "on_exit", otherwise="files come back whenever the program has ended by itself"
    ),
    "stream_output": IMPLIED,
    "stream_error": IMPLIED,
    "input": leave_out("there is no standard input: name it in transfer_input_files, and open it"),
    "getenv": leave_out("variables of your terminal are not passed on: name them in environment"),
    "requirements": _ASKED,
    "rank": _ASKED,
    "request_disk": leave_out("MinScratch (MB) requires WallTime and Architecture, too"),
    "max_retries": _ONCE_MORE,
    "retry_until": _ONCE_MORE,
    "on_exit_hold": _ONCE_MORE,
    "on_exit_remove": _ONCE_MORE,
    "periodic_remove": _ONCE_MORE,
    "periodic_hold": _ONCE_MORE,
    "periodic_release": _ONCE_MORE,
    "notification": leave_out("web hooks of the VO send mail"),
    "notify_user": leave_out("web hooks of the VO send mail"),
    "accounting_group": leave_out("OwnerGroup is one of your token's groups"),
    "accounting_group_user": leave_out("the owner is that of the token"),
    "concurrency_limits": leave_out("limits are of sites and VOs"),
    "transfer_output_remaps": leave_out("`pilotage job output -d` chooses the directory"),
    "hold": leave_out("`pilotage job hold` after the submission"),
}
#: The executable of each job, where its directories are left out.
_PROGRAM: Final = Rule("Executable", _read_file)
#: Read together with others.
_TOGETHER: Final = ("executable", "transfer_executable", "transfer_input_files", "initialdir")


@dataclass(slots=True)
class _Reader:
    """Reads the lines of a file."""

    name: str
    directory: Path
    macros: dict[str, tuple[str, str]] = field(default_factory=dict)  #: keyword as written, value
    left_out: list[str] = field(default_factory=list)
    descriptions: list[dict[str, object]] = field(default_factory=list)
    jobs: int = 0
    empty: list[str] = field(default_factory=list)  #: queue statements that make no jobs
    filled: int = 0  #: macros
    of_rows: dict[str, str] = field(default_factory=dict)  #: names of a queue statement, as written

    def read(self, text: str) -> ImportedJobs:
        lines = iter(list(_join_lines(text)))
        unused: list[str] = []
        for number, line in lines:
            where = f"{self.name}:{number}"
            if queue := _QUEUE.fullmatch(line):
                self.add_jobs(_read_block(queue[1], lines, where), where)
                unused.clear()
            elif _NOT_READ.match(line):
                raise refuse(where, f"{line.split()[0]} is not read: write out what it makes")
            elif assigned := _ASSIGNED.fullmatch(line):
                self.macros[_fold(assigned[1])] = assigned[1], assigned[2]
                unused.append(f"{assigned[1]} = {assigned[2]}")
            else:
                raise refuse(where, f"{line.strip()!r:.80} is no keyword = value")
        if not self.descriptions and self.empty:
            raise refuse(self.name, f"makes no jobs: {'; '.join(self.empty)}")
        if not self.descriptions:
            raise refuse(self.name, "has no queue statement, which submits jobs")
        for each in unused:
            note_left_out(self.left_out, each, "stands after the last queue statement")
        return ImportedJobs(descriptions=self.descriptions, left_out=self.left_out)

    def add_jobs(self, statement: str, where: str) -> None:
        rows = self.list_rows(statement, where)
        check_jobs(self.jobs + len(rows), where)
        for number, row in enumerate(rows, self.jobs):
            row[_PROCESS] = str(number)
            row |= {name: _fill_numbers(value, row) for name, value in row.items()}
            for name, value in row.items():
                check_literal(value, name, where, has_parameters=False)
        if not rows:
            note_left_out(self.left_out, f"queue{statement}", "it makes no jobs")
            self.empty = [*self.empty, f"line {where.rpartition(':')[2]}: queue{statement:.80}"][:_TOLD]
            return
        stated = self.read_keywords(where, has_parameters=len(rows) > 1)
        words: list[list[str]] = []
        if len(rows) == 1:
            stated = {name: _fill(value, rows[0]) for name, value in stated.items()}
        elif _varies_in_words(stated.get("arguments", ""), rows):
            words = [_read_words(_fill(stated["arguments"], row)) for row in rows]
            stated["arguments"] = f"%({_WORDS})s"
        varied = {} if len(rows) == 1 else self.read_varied(stated, rows)
        description = self.describe(stated, where)
        description |= {name: _name_parameter(name, values) for name, values in varied.items()}
        added = _add_parameters(description, rows, words, varied, first=self.jobs)
        self.descriptions.append(added)
        self.jobs += len(rows)

    def list_rows(self, statement: str, where: str) -> list[dict[str, str]]:
        """The values of each job of a queue statement."""
        expanded = self.expand(statement, plain=True)
        for each in _MACRO.finditer(statement):
            if each["default"] is None and each["name"].lower() not in self.macros | _OF_JOBS:
                note_left_out(self.left_out, each[0], "has no value in this file, and is left empty")
        found = _ITEMS.fullmatch(expanded)
        if found is None:
            raise refuse(where, f"queue{expanded:.80} is not understood")
        copies = int(found["copies"] or 1)
        names = re.findall(r"\w+", found["names"] or "")
        if not found["kind"]:
            if names:
                raise refuse(where, f"queue{expanded:.80} is not understood")
            check_jobs(copies, where)
            self.of_rows = {}
            return [{"Step": str(step), "Row": "0"} for step in range(copies)]
        names = names or ["Item"]
        part, rest = _read_slice(found["rest"])
        if rest.lstrip().startswith("["):
            raise refuse(where, f"queue{expanded:.80} is not understood")
        items = list(self.list_items(found["kind"].lower(), rest, where))[part]
        check_jobs(copies * len(items), where)
        self.of_rows = {each.lower(): each for each in names}
        return [
            {
                **dict(zip(names, _split_item(item, len(names)), strict=True)),
                "Step": str(step),
                "Row": str(row),
            }
            for row, item in enumerate(items)
            for step in range(copies)
        ]

    def list_items(self, kind: str, rest: str, where: str) -> Iterator[str]:
        rest = rest.strip()
        inside = rest[1:-1] if rest.startswith("(") and rest.endswith(")") else None
        if kind == "matching":
            yield from self.list_matching(rest, where)
        elif kind == "in":
            yield from (inside if inside is not None else rest).replace(",", " ").split()
        else:
            if inside is None:
                if rest.endswith("|"):
                    raise refuse(where, f"{rest}: no command is run: write what it prints to a file")
                inside = self.read_items(self.directory / rest, where)
            lines = (each.strip() for each in inside.splitlines())
            yield from (each for each in lines if each and not each.startswith("#"))

    def list_matching(self, rest: str, where: str) -> Iterator[str]:
        """The files, or directories, beside the submit file that patterns match."""
        kind, _, patterns = rest.partition(" ")
        kind = kind.lower()
        if kind not in ("files", "dirs", "any"):
            kind, patterns = "files", rest
        for pattern in patterns.strip().removeprefix("(").removesuffix(")").replace(",", " ").split():
            if pattern.startswith("/"):
                raise refuse(where, f"{pattern}: only patterns beside the submit file are read")
            found = islice(self.directory.glob(pattern), bounds.PARAMETRIC_JOBS + 1)
            yield from sorted(
                str(file.relative_to(self.directory))
                for file in found
                if kind == "any" or file.is_dir() == (kind == "dirs")
            )

    def read_items(self, file: Path, where: str) -> str:
        try:
            text = read_text(file).removeprefix(BYTE_ORDER_MARK)
        except InvalidJob as error:
            raise refuse(where, str(error)) from None
        check_size(text, str(file))
        return text

    def read_keywords(self, where: str, *, has_parameters: bool) -> dict[str, str]:
        """The keywords so far with their values, in which placeholders stand for what differs between jobs.

        A name of the queue statement that is a keyword states it. Raises InvalidJob where a value has what
        the description would fill.
        """
        stated: dict[str, str] = {}
        of_rows = {_fold(name): (name, f"$({name})") for name in self.of_rows.values()}
        for name, (_, text) in (self.macros | of_rows).items():
            is_read = name in _TOGETHER or bool(RULES.get(name, IMPLIED).attribute)
            if not is_read and (name in of_rows or (name not in RULES and self.is_macro(name))):
                continue
            if is_read:
                check_literal(self.expand(text, plain=True), name, where, has_parameters=has_parameters)
            value = self.expand(text, tell=is_read)
            known = _FUNCTION.sub("", value) if has_parameters or "$INT" not in value else value
            if found := re.search(r"\$(?:\$|[A-Za-z_]+)\([^)]*\)", known):
                note_left_out(self.left_out, f"{self.spell(name)} = {text}", f"{found[0]} is not known here")
            else:
                stated[name] = value
        return stated

    def read_varied(
        self, stated: dict[str, str], rows: Sequence[Mapping[str, str]]
    ) -> dict[str, list[object]]:
        """Keywords, taken from `stated`, whose values cannot be read before those of the jobs are filled in.

        As numbers, and names of files. What of one job is no value is left out for all.
        """
        varied: dict[str, list[object]] = {}
        for name, text in [*stated.items()]:
            rule = _PROGRAM if name == "executable" else RULES.get(name, IMPLIED)
            if not rule.attribute or name == "arguments" or not (_PLACEHOLDER.search(text) or "$" in text):
                continue
            filled = [_fill(text, row) for row in rows]
            try:
                values = [rule.read(each) for each in filled]
                if values == [_fill_all(_read_or_none(rule, text), row) for row in rows]:
                    continue
                varied[rule.attribute] = values
            except ValueError as error:
                given = self.macros.get(name, ("", text))[1]
                note_left_out(self.left_out, f"{self.spell(name)} = {given}", str(error))
            if name != "executable":
                del stated[name]
        return varied

    def describe(self, stated: dict[str, str], where: str) -> dict[str, object]:
        """The description that keywords make."""
        files = self.read_files({name: stated.pop(name) for name in _TOGETHER if name in stated}, where)
        written = {name: self.spell(name) for name in stated}
        found_values = dict(apply_rules(RULES, stated, self.left_out, written=written))
        found_values.pop("_universe", None)
        return {**files, **found_values}

    def spell(self, name: str) -> str:
        """A keyword as the file has it."""
        return self.macros[name][0] if name in self.macros else self.of_rows.get(name, name)

    def is_macro(self, name: str) -> bool:
        """Whether a name is only one that other values use."""
        return any(f"$({name}" in text.lower() for _, text in self.macros.values())

    def read_files(self, stated: Mapping[str, str], where: str) -> dict[str, object]:
        """The executable, and the files that are sent with it."""
        if not (executable := stated.get("executable", "")):
            raise refuse(where, "executable is not stated")
        begin = PurePosixPath(stated.get("initialdir", ""))
        is_sent = stated.get("transfer_executable", "true").lower() not in ("false", "no", "0")
        sent = [executable] if is_sent else []
        for name in _read_list(stated.get("transfer_input_files", "")):
            if "://" in name:
                note_left_out(self.left_out, f"transfer_input_files = {name}", "fetch it in your program")
                continue
            if name.endswith("/"):
                note_left_out(
                    self.left_out,
                    f"transfer_input_files = {name}",
                    "the directory is sent, not its content alone",
                )
            sent.append(str(begin / name))
        if begin.parts:
            note_left_out(
                self.left_out,
                f"initialdir = {begin}",
                "of outputs: `pilotage job output -d` chooses the directory",
            )
        program = PurePosixPath(executable).name if is_sent else executable
        return {"Executable": program, **({"InputSandbox": sent} if sent else {})}

    def expand(self, text: str, *, plain: bool = False, tell: bool = False, depth: int = 0) -> str:
        """A text with its macros; `plain`: none differs between jobs; `tell`: of those without a value."""

        def fill(found: re.Match[str]) -> str:
            name = found["name"].lower()
            self.filled += 1
            if self.filled > _MOST_FILLED:
                raise refuse(self.name, f"more than {_MOST_FILLED:,} macros are to be filled")
            if plain and name in _OF_JOBS:
                return found[0]
            if not plain:
                if of_rows := (self.of_rows | _OF_JOBS).get(name):
                    return f"%({of_rows})s"
                if name in ("cluster", "clusterid"):
                    note_left_out(self.left_out, found[0], "is the id of each job (%j) here")
                    return "%j"
            if name in self.macros and depth < _DEEPEST:
                return self.expand(self.macros[name][1], plain=plain, tell=tell, depth=depth + 1)
            if tell and found["default"] is None:
                note_left_out(self.left_out, found[0], "has no value in this file, and is left empty")
            return found["default"] or ""

        filled = _MACRO.sub(fill, text)
        if len(filled) > _LONGEST:
            raise refuse(self.name, f"a value has {len(filled):,} characters, allowed are {_LONGEST:,}")
        return filled


def _fold(keyword: str) -> str:
    folded = keyword.lower()
    return f"+{folded.removeprefix('my.')}" if folded.startswith("my.") else folded


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without comments; a backslash at the end continues one."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not begun and (not line.strip() or line.lstrip().startswith("#")):
            continue
        first = first if begun else number
        if line.rstrip().endswith("\\"):
            begun += line.rstrip()[:-1] + " "
            continue
        yield first, begun + line
        begun = ""
    if begun:
        yield first, begun


def _read_block(statement: str, lines: Iterator[tuple[int, str]], where: str) -> str:
    """A queue statement whose list in parentheses may go over several lines."""
    if "(" not in statement or ")" in statement.rpartition("(")[2]:
        return statement
    for _, line in lines:
        statement += f"\n{line}"
        # An item may end with a parenthesis of its own.
        if line.strip().startswith(")") or (line.strip().endswith(")") and "(" not in line):
            return statement
    raise refuse(where, "the list of the queue statement has no )")


def _split_item(item: str, number: int) -> list[str]:
    """The values of an item for so many names; the last one gets the rest."""
    if number == 1:  # zero would mean no limit
        return [item]
    separator = "\x1f" if "\x1f" in item else r"\s*,\s*|\s+"
    parts = [each.strip() for each in re.split(separator, item, maxsplit=number - 1)]
    return parts + [""] * (number - len(parts))


def _varies_in_words(text: str, rows: Sequence[Mapping[str, str]]) -> bool:
    """Whether a text with the values of jobs has other words: by blanks, quotes, or functions of them."""
    if _FUNCTION.search(text):
        return True
    used = dict.fromkeys(_PLACEHOLDER.findall(text))
    return any(re.search(r"[\s'\"]", row[name]) or not row[name] for name in used for row in rows)


def _add_parameters(
    description: dict[str, object],
    rows: Sequence[Mapping[str, str]],
    words: Sequence[list[str]],
    varied: Mapping[str, Sequence[object]],
    *,
    first: int,
) -> dict[str, object]:
    """A description with the values of its jobs: those that it uses."""
    if len(rows) == 1:
        return description
    used = dict.fromkeys(_list_placeholders([*description.values()]))
    if not varied and set(used) <= {_PROCESS}:
        start = {"ParameterStart": first} if first and used else {}
        counted = {name: _count(value) for name, value in description.items()}
        return {**counted, "Parameters": len(rows), **start}
    values: dict[str, object] = {name: [row[name] for row in rows] for name in used if name in rows[0]}
    values |= {_WORDS: list(words)} if words else {}
    values |= {f"{name}Value": list(each) for name, each in varied.items()}
    return {**description, **{f"Parameters.{name}": each for name, each in values.items()}}


def _list_placeholders(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from _PLACEHOLDER.findall(value)
    elif isinstance(value, list):
        for each in value:
            yield from _list_placeholders(each)


def _count(value: object) -> object:
    """A value in which the number of the job is that of a counted parameter."""
    if isinstance(value, list):
        return [_count(each) for each in value]
    return _fill(value, {_PROCESS: "%s"}) if isinstance(value, str) else value


def _fill(text: str, row: Mapping[str, str]) -> str:
    """A text with the values of a job, and with the functions of them."""
    folded = {name.lower(): value for name, value in row.items()} | {"procid": row[_PROCESS]}

    def apply(found: re.Match[str]) -> str:
        value = folded.get(_NAMES_OF_NUMBERS.get(found["name"].lower(), found["name"].lower()), "")
        if found["parts"] is None:
            return f"{int(value):0{int(found['width'] or 0)}d}" if value.isdecimal() else found[0]
        return _take_parts(PurePosixPath(value), found["parts"])

    filled = _PLACEHOLDER.sub(lambda found: row.get(found[1], found[0]), text)
    return _FUNCTION.sub(apply, filled)


def _take_parts(file: PurePosixPath, parts: str) -> str:
    """Parts of a file's name: its directories, the last of them, the name, and its ending; `q` quotes it."""
    if not set(parts) - {"q"}:
        taken = str(file)
    else:
        begin = f"{file.parent}/" if "p" in parts else f"{file.parent.name}/" if "d" in parts else ""
        taken = begin + (file.stem if "n" in parts else "") + (file.suffix if "x" in parts else "")
    return f'"{taken}"' if "q" in parts else taken


def _fill_numbers(value: str, row: Mapping[str, str]) -> str:
    """The value of an item with the numbers of its job."""
    return _MACRO.sub(lambda found: row.get(_OF_JOBS.get(found["name"].lower(), ""), found[0]), value)


def _read_slice(text: str) -> tuple[slice, str]:
    """The part of items that is meant, such as `[:10]`, and what follows it."""
    if (found := _SLICE.fullmatch(text)) is None:
        return slice(None), text
    begin, end, step = (int(each) if each.strip("-") else None for each in found.group(1, 3, 5))
    if not found[2]:
        end = None if begin in (None, -1) else (begin or 0) + 1
    return slice(begin, end, step or None), found[6]


def _read_or_none(rule: Rule, text: str) -> object:
    """What a text with placeholders is read as; None: it is not, as a number."""
    try:
        return None if "$" in text else rule.read(text)
    except ValueError:
        return None


def _fill_all(value: object, row: Mapping[str, str]) -> object:
    if isinstance(value, list):
        return [_fill(each, row) for each in value]
    return _fill(value, row) if isinstance(value, str) else value


def _name_parameter(name: str, values: Sequence[object]) -> object:
    """The placeholder of a parameter with the values of a keyword."""
    placeholder = f"%({name}Value)s"
    return [placeholder] if values and isinstance(values[0], list) else placeholder


def read_submit_file(text: str, *, name: str, directory: Path) -> ImportedJobs:
    """The descriptions of a submit file, one for each queue statement; `directory` has its items.

    Raises InvalidJob for what is no submit file, or makes other jobs by conditions or commands.
    """
    check_size(text, name)
    text = text.removeprefix(BYTE_ORDER_MARK)
    return _Reader(name=name, directory=directory).read(text)
