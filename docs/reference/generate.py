"""The pages of the reference, made from the tables of the program: `./dev docs` writes them.

Each page is a sentence and the tables that the program itself reads, so that no list can miss one. A test
compares the pages with what this module would write.
"""

import collections
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.models import OptionInfo

from cs_config.editing.show import read_docstrings
from cs_config.options import bounds, keywords
from cs_config.options.options import DeclaredName, JobType, ShareCorrection, TimeSlice, VoOptions
from cs_config.tree.parameters import KNOWN
from docs.reference.amounts import AMOUNTS, Amount
from matcher.conditions import CONDITIONS
from pilotage import extensions
from pilotage.cli import man_pages
from pilotage.cli.settings import IssuerSettings, RoleSettings, Settings, SignInSettings
from pilotage.service import app, error_statuses
from pilotage.service.metrics import Metrics, StateMetrics
from requirements.errors import PilotageError
from requirements.states import AfterPolicy
from requirements.values import format_value
from taskqueue.jobs.optimizer_queue import OptimizerQueueState

PROJECT: Final = Path(__file__).parents[2]
PAGES: Final = Path(__file__).parent
_MADE: Final = "<!-- Written by `./dev docs` from the program: change the tables there. -->"


def table(heads: Sequence[str], rows: Iterator[Sequence[object]]) -> str:
    """A table in Markdown; `|` and line breaks in cells do not end them."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(str(cell)) for cell in line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(*names: object) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _sentence(thing: object) -> str:
    """The first paragraph of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n\n")[0]


#: What a reader of keywords takes.
_KINDS: Final[Mapping[Callable[[object], object], str]] = {
    keywords.text: "text",
    keywords.SHORT_TEXT: f"text of up to {bounds.NAME} characters",
    keywords.FILLED_TEXT: "text, not blank",
    keywords.node_word: f"text of 1 to {bounds.NAME} characters",
    keywords.SHORT_FILLED_TEXT: f"text of 1 to {bounds.NAME} characters",
    keywords.arguments: "command line, or list of words",
    keywords.texts: "list of texts",
    keywords.names: f"list of up to {bounds.LISTED} names",
    keywords.retry: "rules",
    keywords.relax: "rules",
    keywords.parents: f"list of up to {bounds.PARENTS:,} ids and names",
    keywords.after_policy: ", ".join(f"`{each}`" for each in AfterPolicy),
    keywords.WHOLE_NUMBER: "whole number",
    keywords.number: "number",
    keywords.flag: "true or false",
    keywords.image: f"path or address, text of up to {bounds.NAME} characters",
    keywords.cpu_level: "`x86-64-v1` … `x86-64-v4`, `armv8.0-a` … `armv8.6-a`, `armv9.0-a`, `armv9.1-a`",
    keywords.version: "version of up to three numbers, a text",
    keywords.tags_expression: "expression",
    keywords.environment: "record, or list of `NAME=value`",
    keywords.foreign: "record of texts",
    keywords.logical_names: "list of logical file names: `LFN:/vo/path/file`",
}


def write_keywords() -> str:
    """Keywords of descriptions."""

    def row(keyword: keywords.Keyword) -> Sequence[object]:
        low, high = (
            None if each is None else format_value(each) for each in (keyword.minimum, keyword.maximum)
        )
        limits = "" if low is None else f" from {low}" if high is None else f" from {low} to {high}"
        default = keywords.DEFAULTS.get(keyword.name, "")
        return (
            _code(keyword.name),
            _code(*keyword.also),
            keyword.meaning,
            _KINDS[keyword.read] + limits,
            default,
        )

    heads = ("keyword", "also", "means", "allowed", "default")
    return f"""# Keywords of job descriptions

The same in JDL, JSON, YAML and DIRAC's CFG; case does not matter. The VO may set other
[bounds and defaults](../vo-admin/options.md#jobdescription) of keywords and allow further ones
(`JobDescription/Extra`). How they are written: [describe the job](../user/README.md#describe-the-job).

{table(heads, map(row, keywords.KEYWORDS))}
`Requirements` and `Rank` are a record of values or an [expression](../user/requirements.md).
{_code(*keywords.PARAMETRIC)} make many jobs of one description.
"""


def table_of_conditions() -> str:
    """The table of matching, a row for each condition."""
    rows = (
        (
            _code(*(each.keyword for each in condition.demands)),
            condition.meaning,
            _code(*condition.parameters),
            "; ".join(
                each.change.format(names="…", number="…")
                for each in condition.demands
                if each.change is not None
            ),
        )
        for condition in CONDITIONS
    )
    heads = (
        "keyword of the job",
        "a resource runs it only if",
        "parameters of queues",
        "a queue then has to",
    )
    return table(heads, rows)


def write_requirements() -> str:
    """The conditions between a job and a resource."""
    return f"""# What a job requires

All conditions between a job and a resource hold at once. `Requirements` may name anything else that queues
have, as a record or an [expression](../user/requirements.md). A job that waits: [why](../user/why-not.md).

{table_of_conditions()}"""


def write_parameters() -> str:
    """Parameters of sites, CEs and queues."""
    rights = {"set": "yes", "lower": "less than the site", "none": "no"}
    rows = ((_code(known.name), known.allowed, known.meaning, rights[known.right]) for known in KNOWN)
    return f"""# Parameters of sites, CEs and queues

Any other name is a site's own and is kept unchanged; jobs can use it in their `Requirements`. Names are
case-insensitive. [Dynamic attributes, inheritance and values by VO](../site-admin/parameters.md).

{table(("parameter", "allowed", "means", "a VO's admin may set it for the VO"), rows)}"""


def _format_default(default: object) -> str:
    if default is None or default is PydanticUndefined or default == () or isinstance(default, BaseModel):
        return ""
    return format_value(list(default) if isinstance(default, tuple) else default)  # type: ignore[arg-type]


def _options_of(model: type[BaseModel]) -> str:
    meanings = read_docstrings(model)
    rows = (
        (_code(field.alias), _format_default(field.default), meanings[name])
        for name, field in model.model_fields.items()
        if field.alias != "Declared"
    )
    return table(("option", "default", "means"), rows)


def write_options() -> str:
    """Options of the operations, a table for each section."""
    sections: dict[str, type[BaseModel]] = {
        "JobTypes/<type>": JobType,
        "JobDescription/<Name>": DeclaredName,
        "JobScheduling/ShareCorrections/<name>": ShareCorrection,
        "JobScheduling/ShareCorrections/<name>/TimeSlices/<name>": TimeSlice,
    }
    for field in VoOptions.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            sections[str(field.alias)] = field.annotation
    parts = (f"## {name}\n\n{_options_of(sections[name])}" for name in sorted(sections))
    return f"""# Options of the operations

They stand under `Operations/Defaults`, and under `Operations/<vo>` for one VO, whose own win, option by
option. Who may set them, largest values and what goes beyond a line: [more](../vo-admin/options.md).

{chr(10).join(parts)}"""


def write_settings() -> str:
    """Settings of processes and clients."""

    def fields_of(*models: type[BaseModel]) -> str:
        rows = (
            (_code(name), _format_default(field.default), meanings.get(name) or _help_of(field))
            for meanings, model in ((read_docstrings(each), each) for each in models)
            for name, field in model.model_fields.items()
        )
        return table(("setting", "default", "means"), rows)

    return f"""# Settings

Of `up`, `serve`, `worker`, `agent` and commands: an option (`--log-level`), else a variable
(`PILOTAGE_LOG_LEVEL`), else a line of `pilotage.yaml` in the home directory (`log_level: info`). While
`pilotage up` runs, other commands of its home directory take over its database, Redis and certificate, unless
an option or a variable states another.
Settings with structure are YAML or JSON in a variable. `pilotage COMMAND --help` lists the options of a
process.

{fields_of(Settings, *extensions.list_settings())}
## Issuers

`issuers` is a list of these: [who may sign in](../operator/tokens.md).

{fields_of(IssuerSettings)}
`roles` of an issuer:

{fields_of(RoleSettings)}
`sign_in` of an issuer:

{fields_of(SignInSettings)}"""


def _help_of(setting: FieldInfo) -> str:
    """The help of the option of a setting."""
    return next(str(each.help) for each in setting.metadata if isinstance(each, OptionInfo))


def write_commands() -> str:
    """Commands of the program with their options."""
    parts = (
        _write_command(words, command)
        for words, command in man_pages.list_commands()
        if not hasattr(command, "commands")
    )
    return f"""# Commands

As `--help` shows them; `./dev man` makes manual pages. Exit status 0: done; 1: refused or not found, or a
check has failed; 2: wrong usage or configuration; 130: interrupted.

{chr(10).join(parts)}"""


def _write_command(words: Sequence[str], command: Any) -> str:
    context = command.make_context(" ".join(words), [], resilient_parsing=True)
    usage = " ".join([*words, *command.collect_usage_pieces(context)])
    records = (each.get_help_record(context) for each in command.get_params(context))
    rows = [(f"`{term}`", _unescape(text)) for term, text in filter(None, records)]
    head = f"## {' '.join(words)}\n\n`{usage}`\n\n{_unescape(command.help or '')}\n"
    return head + ("\n" + table(("option", "means"), iter(rows)) if len(rows) > 1 else "\n")


def _unescape(text: str) -> str:
    """A help text without the marks for the terminal."""
    return text.replace(r"\[", "[")


def write_http() -> str:
    """Requests by subject, and the parameters of their addresses."""
    document = app.ServiceApplication(routes=app.list_routes()).openapi()
    operations = [
        (method.upper(), path, operation)
        for path, by_method in document["paths"].items()
        for method, operation in by_method.items()
    ]
    parts = [
        f"## {tag['name'].capitalize()}\n\n{tag['description']}\n\n"
        + table(("request", "does", "parameters"), _requests_of(tag["name"], operations))
        for tag in document["tags"]
    ]
    meanings = collections.defaultdict[str, dict[str, str]](dict)
    for method, path, operation in operations:
        for each in operation.get("parameters", ()):
            request = _code(f"{method} {path.removeprefix('/api/v1')}")
            meanings[each["name"]].setdefault(each.get("description", ""), request)
    parameters = (
        (_code(name), "; ".join(texts if len(texts) == 1 else _label_meanings(texts)))
        for name, texts in sorted(meanings.items())
    )
    return f"""# HTTP interface

Below `/api/v1`, JSON both ways. [How to call it](../user/http.md): token, errors, pages, repetition. A
running service describes bodies and answers at `/openapi.json`, and `/docs` is a page to try them.

{chr(10).join(parts)}
## Parameters

{table(("parameter", "means"), parameters)}"""


def _label_meanings(first_requests: Mapping[str, str]) -> Iterator[str]:
    """The meanings of a parameter, each with the first request that has it."""
    return (f"{request}: {text.removesuffix('.')}" for text, request in first_requests.items())


def _requests_of(
    tag: str, operations: Sequence[tuple[str, str, Mapping[str, Any]]]
) -> Iterator[Sequence[object]]:
    for method, path, operation in operations:
        if operation["tags"] == [tag]:
            names = [each["name"] for each in operation.get("parameters", ()) if each["in"] != "path"]
            yield f"`{method} {path.removeprefix('/api/v1')}`", operation["summary"], _code(*names)


#: The packages whose errors a service answers with.
_ANSWERING: Final = ("requirements", "cs_config", "taskqueue", "optimizers", "matcher", "pilotage.service")


def write_errors() -> str:
    """Codes of errors with their HTTP status."""
    extensions.list_routers()  # loads the errors of plug-ins
    answering = (*_ANSWERING, *(each.package for each in extensions.list_plugins().values() if each.routers))
    meanings = collections.defaultdict[tuple[str, int], list[str]](list)
    for kind in sorted(set(_list_kinds(PilotageError)), key=lambda kind: (kind.__module__, kind.__name__)):
        status = error_statuses.status_of(kind.__new__(kind))
        if status != 500 and kind.__module__.startswith(answering):
            meanings[kind.code, status].append(_sentence(kind))
    rows = ((_code(code), status, " ".join(texts)) for (code, status), texts in sorted(meanings.items()))
    return f"""# Errors

Every answer with status 400 or higher is `{{"error": {{"code": …, "message": …, "details": {{…}}}}}}`.
The code is stable, the message is for people. `details.problems` lists all faults of an input with their
place; 429 and 503 come with `Retry-After`, in seconds.

{table(("code", "status", "means"), rows)}"""


def _list_kinds(kind: type[PilotageError]) -> Iterator[type[PilotageError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _list_kinds(each)


def write_metrics() -> str:
    """Metrics with their labels."""
    empty = StateMetrics(
        living={},
        ended={},
        stuck_pools={},
        unmatched={},
        cycles={},
        overdue={},
        broken={},
        mended=0,
        place_lookups={},
        processes=(),
        advertised={},
        now=datetime(2026, 1, 1, tzinfo=UTC),
        runnable={},
        pilots={},
        is_replica_used=True,
        optimizer_queue=OptimizerQueueState(problem=None),
    )
    families: Iterator[Metric] = chain(Metrics().registry.collect(), empty.collect())
    rows = sorted(
        (
            _code(family.name + ("_total" if family.type == "counter" else "")),
            family.type,
            family.documentation,
        )
        for family in families
    )
    return f"""# Metrics

`GET /metrics` of each `serve`, for Prometheus. Counters are of the process that answers, gauges of the
database. `/metrics` lists the labels.

{table(("metric", "type", "means"), iter(rows))}"""


def list_alerts() -> Mapping[str, Mapping[str, Any]]:
    """The rules of the alerts by name."""
    groups = yaml.safe_load((PROJECT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def write_bounds() -> str:
    """What one caller, VO or site may have."""
    parts = (
        f"## {section}\n\n"
        + table(
            ("who", "what", "at most", "counted by", "test"),
            ((each.who, each.what, each.most, _code(each.counted_by), _shown_test(each)) for each in amounts),
        )
        for section, amounts in AMOUNTS.items()
    )
    benchmark = "../developer/benchmarks.md#hostile-what-an-attack-of-one-vo-costs-another"
    return f"""# Bounds

Beyond a bound requests get 429 with `Retry-After`, unless another answer is named. Bounds hold for each
process of the service unless said otherwise; [for whom, and why](../operator/bounds.md). `hostile` names
attacks of [the benchmark]({benchmark}).

""" + "\n".join(parts)


def _shown_test(amount: Amount) -> str:
    """The test that reaches a bound, and the attacks that do."""
    file, name = amount.test.split("::")
    attacks = f"; `hostile`: {', '.join(amount.attacks)}" if amount.attacks else ""
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../../{file}){attacks}"


def write_alerts() -> str:
    """Alerts with their conditions."""
    rows = (
        (
            f"[{name}](../operator/when-it-breaks.md#{name.lower()})",
            rule["labels"]["severity"],
            f"`{' '.join(rule['expr'].split())}`" + (f" for {rule['for']}" if "for" in rule else ""),
        )
        for name, rule in list_alerts().items()
    )
    return f"""# Alerts

Of `deploy/prometheus/alerts.yaml`. Each links to its cause and cure.

{table(("alert", "severity", "when"), rows)}"""


WRITERS: Final[Mapping[str, Callable[[], str]]] = {
    "keywords": write_keywords,
    "requirements": write_requirements,
    "commands": write_commands,
    "http": write_http,
    "settings": write_settings,
    "options": write_options,
    "parameters": write_parameters,
    "errors": write_errors,
    "metrics": write_metrics,
    "alerts": write_alerts,
    "bounds": write_bounds,
}


def write_page(name: str) -> str:
    """A whole page."""
    heading, rest = WRITERS[name]().split("\n", 1)
    return f"{heading}\n\n{_MADE}\n{rest.rstrip()}\n"


if __name__ == "__main__":
    for page in WRITERS:
        (PAGES / f"{page}.md").write_text(write_page(page), encoding="utf-8")
    sys.stdout.write(f"{len(WRITERS)} pages are in {PAGES}\n")
