"""`pilotage config set`, `apply` and `preview`: change the configuration, or show the effects of a change.

Changes are read from words or files, and become requests to the service.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from cs_config import validate
from cs_config.editing import patch
from cs_config.editing.patch import BulkEdit
from cs_config.source import diff, yaml_writer
from cs_config.source.diff import Difference
from cs_config.tree.configuration import Configuration
from pilotage.cli import options, output
from pilotage.cli.commands import queue
from pilotage.cli.commands.config import show
from pilotage.cli.commands.config.show import Message
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage, harmless
from pilotage.client.api import ServiceClient
from requirements.errors import InvalidInput, InvalidRequest, format_count

#: A response of the service.
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A change, and the version that it starts from."""

    body: Mapping[str, Any]  #: `text` with `source`, or `set` and `remove`
    version: int
    changed: bool
    differences: tuple[Difference, ...] = ()
    is_bulk: bool = False  #: the paths were found by a pattern, so they are shown before they are changed


def change_from_file(client: ServiceClient, file: Path) -> ConfigChange:
    """The change that replaces the visible configuration by a file.

    A caller that sees only a part of the tree sends the differences in that part.
    """
    config = validate.load_file(file)
    answer = client.config()
    found = diff.compare(answer["config"], config.tree)
    version = int(answer["version"])
    if (text := answer.get("text")) is not None:
        whole = {"text": config.source, "source": file.name}
        return ConfigChange(body=whole, version=version, changed=text != config.source, differences=found)
    return ConfigChange(body=edits(found), version=version, changed=bool(found), differences=found)


def show_difference(
    file: Annotated[
        Path | None, options.argument("[FILE]", "Compare the configuration in force with this file.")
    ] = None,
    *,
    before: Annotated[int | None, options.option("VERSION", "Compare this version …", "--from")] = None,
    after: Annotated[
        int | None, options.option("VERSION", "… with this one (default: the newest).", "--to")
    ] = None,
    service: ServiceOptions,
) -> None:
    """Show the differences between two versions, or between the configuration and a file.

    Example: `pilotage config diff --from 3 --to 4`.
    """
    if (file is None) == (before is None):
        raise WrongUsage("give a FILE, or --from VERSION")
    with service.connect() as client:
        if file is not None:
            wanted = change_from_file(client, file)
            changes = [each.as_json() for each in wanted.differences]
            data: dict[str, Any] = {
                "from_version": wanted.version,
                "file": str(file),
                "changes": changes,
            }
        else:
            data = client.config_diff(before or 0, after)
    lines = list(show.change_lines(data["changes"])) or ["no difference"]
    service.emit(data, lambda: "\n".join(lines))


def edits(differences: Sequence[Difference]) -> dict[str, object]:
    """Differences as the body of a request."""
    values, removed = patch.edits_from_differences(differences)
    return {"set": values, "remove": removed}


def change_from_words(
    client: ServiceClient, words: Sequence[str], removed: Sequence[str], where: Sequence[str] = ()
) -> ConfigChange:
    """The change made of `PATH=VALUE` words and paths to remove, at the places that `where` selects."""
    if not words and not removed:
        raise WrongUsage("give PATH=VALUE, or --remove PATH")
    edits = list(map(parse_edit, words))
    answer = client.config()
    version = int(answer["version"])
    if where or not all(each.is_plain for each in edits):
        if removed:
            raise WrongUsage("--remove takes single paths; do not combine it with *, += or --where")
        temporary = [each["path"] for each in client.config_temporary()]
        try:
            values = patch.expand_edits(
                _configuration(answer), edits, queue.parse_selection(where), temporary
            )
        except InvalidInput as error:
            raise WrongUsage(str(error)) from error
        body: dict[str, object] = {"set": values, "remove": []}
        return ConfigChange(body=body, version=version, changed=bool(values), is_bulk=True)
    body = {"set": {each.pattern: each.value for each in edits}, "remove": list(removed)}
    return ConfigChange(body=body, version=version, changed=True)


def parse_edit(word: str) -> BulkEdit:
    """Read a word `PATH=VALUE`, or with += and -=."""
    path, equals, written = word.partition("=")
    sign = path[-1:] if path[-1:] in ("+", "-") else ""
    path = path.removesuffix(sign).strip()
    if not path or not equals:
        raise WrongUsage(f"{word!r}: write PATH=VALUE, as Resources/Sites/LCG.CERN.ch/MaxRAM=8000")
    try:
        value = yaml_writer.read_value(written, path)
    except InvalidRequest as error:
        raise WrongUsage(str(error)) from error
    if sign and isinstance(value, str) and "," in value and value == written.strip():
        output.warn(f"{path}: {value!r} is one item; several are written as '{path}{sign}=[{value}]'")
    return BulkEdit(pattern=path, value=value, operator=f"{sign}=")


def configuration_from(file: Path | None, service: ServiceOptions) -> Configuration:
    """The configuration of a file, or without one the configuration in force."""
    return validate.load_file(file) if file else fetch_configuration(service)


def fetch_configuration(service: ServiceOptions) -> Configuration:
    """The visible part of the configuration in force.

    Operators get the text, with the line numbers of the source; others get the parts that they may see.
    """
    with service.connect() as client:
        return _configuration(client.config())


def _configuration(answer: Answer) -> Configuration:
    text = answer.get("text") or yaml_writer.to_yaml(answer["config"])
    file = answer.get("source") or f"version {answer['version']}"
    return validate.parse(text, file, answer["version"], kept=None)


Guards = Annotated[
    list[str] | None,
    options.option(
        "CONDITION",
        "Cancel the change unless its preview meets this condition, such as stuck_jobs=0 or "
        "running_jobs<=10; may be repeated. Names: see totals in `config preview --json`.",
        "--guard",
    ),
]
Edits = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH=VALUE…",
        help="Full path and YAML value, such as Resources/Sites/LCG.CERN.ch/MaxRAM=8000; other values: "
        "\\[el8, el9], {Policy: level0}, null. * in a path: every such name; += and -=: add to a list, or "
        "take away.",
        show_default=False,
    ),
]
Removed = Annotated[
    list[str] | None, options.option("PATH", "Remove this path; may be repeated.", "--remove")
]

Where = Annotated[
    list[str] | None,
    options.option(
        "NAME=V1,V2…",
        "Only sites, CEs and queues that fulfil this requirement; repeated: all. Or an expression.",
        "--where",
    ),
]


def set_(
    edits: Edits = None,
    *,
    removed: Removed = None,
    where: Where = None,
    yes: Annotated[bool, typer.Option("--yes", help="Change many places without a confirmation.")] = False,
    lasting: Annotated[
        str | None,
        options.duration_option(
            "Restore the values that are there now after 90s, 30m, 6h, 2d …, unless they are changed again.",
            "--for",
        ),
    ] = None,
    message: Message = None,
    guards: Guards = None,
    service: ServiceOptions,
) -> None:
    """Change single values of the configuration; comments and changes by others are kept.

    VO admins may change VOs/<vo> and Operations/<vo>, site admins their site except VOs, operators all.
    A change of many places (*, +=, --where) is previewed first.

    Example: `pilotage config set Resources/Sites/LCG.CERN.ch/MaxRAM=8000 --for 2h`.
    """
    revert = {} if lasting is None else {"revert_after": options.parse_duration(lasting)}
    with service.connect() as client:
        wanted = change_from_words(client, edits or (), removed or (), where or ())
        if wanted.is_bulk and not wanted.changed:
            service.emit({"version": wanted.version, "changes": []}, lambda: _unchanged(wanted.version))
            return
        if wanted.is_bulk and not yes:
            _confirm(client, wanted)
        answer = _edit(client, wanted, message or "", guards, **revert)
    service.emit(answer, lambda: "\n".join(_format_answer(answer)))


def apply(
    file: Annotated[Path, options.argument("FILE", "YAML with Resources, Operations and Registry.")],
    *,
    message: Message = None,
    guards: Guards = None,
    service: ServiceOptions,
) -> None:
    """Replace the configuration by a file; an invalid or unchanged file changes nothing.

    For VO and site admins, only differences in their sections are applied.

    Example: `pilotage config apply resources.yaml --message 'more memory at CERN'`.
    """
    why = message or f"applied {file.name}"
    with service.connect() as client:
        wanted = change_from_file(client, file)
        stored: Answer = {"version": wanted.version}
        if wanted.changed:
            stored = store(client, wanted, why, guards)
    version = stored["version"]
    line = _in_force(version) if wanted.changed else _unchanged(version)
    warnings = {"warnings": stored.get("warnings", []), "more_warnings": stored.get("more_warnings", 0)}
    answer = {"version": version, "changed": wanted.changed, **warnings}
    service.emit(answer, lambda: "\n".join([*show.warning_lines(answer), line]))


def store(client: ServiceClient, wanted: ConfigChange, message: str, guards: Sequence[str] | None) -> Answer:
    """Store a change; the new version, and new warnings."""
    if "text" not in wanted.body:  # only operators may send a whole text
        return _edit(client, wanted, message, guards)
    text, source = str(wanted.body["text"]), str(wanted.body["source"])
    return client.put_config(
        text=text, source=source, message=message, version=wanted.version, guards=guards or ()
    )


def _confirm(client: ServiceClient, wanted: ConfigChange) -> None:
    """Show what a change of many places would do, and ask; without a terminal it is refused."""
    preview = client.preview_config(wanted.body)
    output.progress_console().print(render_with_effects(preview["changes"], preview))
    if not sys.stdin.isatty():
        raise WrongUsage("a change of many places needs --yes; nothing is changed")
    # Also those that have the value now, but would be reverted.
    typer.confirm(f"Set {format_count(len(wanted.body['set']), 'value')}?", abort=True, err=True)


def _edit(
    client: ServiceClient,
    wanted: ConfigChange,
    message: str,
    guards: Sequence[str] | None,
    **more: object,
) -> Answer:
    body = {**wanted.body, "message": message, **({"guard": guards} if guards else {}), **more}
    return client.patch_config(body, version=wanted.version)


def _format_answer(answer: Answer) -> list[str]:
    until = answer.get("reverts_at")
    revert = [f"reverts at {output.local_time(until)}"] if until else []
    if not answer["changes"]:
        return [_unchanged(answer["version"]), *revert]
    changes = show.change_lines(answer["changes"])
    return [*changes, *show.warning_lines(answer), _in_force(answer["version"]), *revert]


def _in_force(version: int) -> str:
    return f"version {version} is in force"


def _unchanged(version: int) -> str:
    return f"nothing changed, version {version} stays in force"


#: Entries of a list to print.
_MOST = 10


def preview(
    file: Annotated[Path | None, options.argument("[FILE]", "New configuration, YAML.")] = None,
    *,
    edits: Annotated[
        list[str] | None,
        options.option("PATH=VALUE", "Change one value, as `config set` does; may be repeated.", "--set"),
    ] = None,
    removed: Removed = None,
    where: Where = None,
    service: ServiceOptions,
) -> None:
    """Show what a change would do to waiting and running jobs; nothing is changed.

    Lists pools that gain or lose queues, waiting jobs that become stuck or free, jobs running on removed
    queues, throttles that would close at once, and parameters that no waiting job can use.

    Example: `pilotage config preview --set Resources/Sites/LCG.CERN.ch/MaxRAM=8000`.
    """
    if (file is None) == (not edits and not removed):
        raise WrongUsage("give a FILE, or --set PATH=VALUE and --remove PATH")
    with service.connect() as client:
        if file is not None:
            wanted = change_from_file(client, file)
        else:
            wanted = change_from_words(client, edits or (), removed or (), where or ())
        if not (wanted.changed or service.as_json):
            typer.echo(f"nothing would change in version {wanted.version}", err=True)
            return
        answer = client.preview_config(wanted.body)
    lines = ["nothing is changed yet"]
    if edits and not removed and not where:  # what a replay can be told
        lines += ["an operator can replay the last day with it:", f"  {patch.format_replay(edits)}"]
    service.emit(
        answer, lambda: Group(render_with_effects(answer["changes"], answer), harmless("\n".join(lines)))
    )


def render_with_effects(changes: Sequence[Answer], answer: Answer | None) -> RenderableType:
    """Changes, and their effects where these were computed."""
    return Group(harmless("\n".join(show.change_lines(changes))), render_effects(answer))


def render_effects(answer: Answer | None) -> RenderableType:
    """Effects of a change; nothing where they were not computed."""
    if answer is None:
        return Group()
    lines = harmless("\n".join(_effect_lines(answer)))
    if not answer["jobs"]:
        return lines
    rows = ((vo, *(n[each] or "" for each in _COUNTS)) for vo, n in answer["jobs"].items())
    headings = ("Jobs of", "#Waiting", "#Become stuck", "#Become free", "#Gain queues", "#Lose queues")
    return Group(output.table(headings, rows), lines)


_COUNTS = ("waiting", "stuck", "freed", "gain", "lose")


def _effect_lines(answer: Answer) -> Iterator[str]:
    totals = answer["totals"]
    yield from show.warning_lines(answer)
    yield from _format_some("new", answer["new_queues"], totals["new_queues"])
    yield from _format_some("removed", answer["removed_queues"], totals["removed_queues"])
    yield (
        f"pools, by Requirements alone: {totals['pools_gaining']} gain queues, "
        f"{totals['pools_losing']} lose some, {totals['pools_without_queue']} are left without any"
    )
    for pool in answer["pools"][:_MOST]:
        yield f"  {pool['pool'][:12]} of {pool['vo']}, {pool['waiting']} waiting: {_queues(pool)}"
    for each in answer["classes"][:_MOST]:
        example = "" if each["example_job"] is None else f", such as {each['example_job']},"
        words = "stuck without" if each["becomes"] == "stuck" else "free with"
        about = f"of {each['vo']}{example}"
        jobs = format_count(each["jobs"], f"job {about} becomes", f"jobs {about} become")
        yield f"{jobs} {words} {_format_queues(each['queues'])}"
    for each in answer["running"][:_MOST]:
        yield (
            f"{each['queue']} goes for {each['vo']}, {each['why']}: "
            f"{format_count(each['jobs'], 'job')} and {format_count(each['pilots'], 'pilot')} are there"
        )
    yield from (f"{each['scope']} is closed at once: {each['why']}" for each in answer["closed"][:_MOST])
    for each in answer.get("floors", ())[:_MOST]:  # a service of 1.0 has none
        has = f"it has {format_count(each['cores'], 'core')} there"
        fits = format_count(each["jobs"], "waiting job fits", "waiting jobs fit")
        after = each["after"] or "none"
        what = f"the floor of {each['vo']} at {each['site']}"
        yield f"{what} becomes {after} instead of {each['before']}: {has}, {fits}"
    for each in answer.get("temporary", ())[:_MOST]:  # a service of 1.0 has none
        back = diff.format_entry(each["restored"]) if "restored" in each else "no value"
        when = output.local_time(each["reverts_at"])
        yield f"{each['path']} is temporary: {back} does not come back at {when}, unless you use --for"
    for each in answer.get("order", ())[:_MOST]:  # a service of 1.0 has none
        jobs = format_count(each["jobs"], "waiting job")
        kind = f"of the type {each['job_type']}" if each["job_type"] else "without a type"
        about = f"{jobs} of {each['vo']} {kind}"
        yield f"{about}: {each['after']}; before: {each['before']}"
    yield from (_useless_line(each) for each in answer["in_vain"][:_MOST])
    for vo, work in answer["left_out"].items():
        jobs, sets = format_count(work["jobs"], "job"), format_count(work["classes"], "set")
        yield f"{vo}: of {jobs} with {sets} of requirements nothing was computed"


def _format_some(what: str, queues: list[str], number: int) -> Iterator[str]:
    if number:
        yield f"{format_count(number, 'queue is', 'queues are')} {what}: {_format_queues(queues)}"


def _format_queues(queues: list[str]) -> str:
    return ", ".join(queues[:3]) + (" …" if len(queues) > 3 else "")


def _queues(pool: Answer) -> str:
    gained = f"+{pool['gains']} ({_format_queues(pool['gained'])})" if pool["gains"] else ""
    lost = f"-{pool['loses']} ({_format_queues(pool['lost'])})" if pool["loses"] else ""
    return " ".join(each for each in (gained, lost) if each)


def _useless_line(each: Answer) -> str:
    if each["jobs"]:
        jobs = format_count(each["jobs"], "waiting job")
        return f"{each['name']}: it decides about {jobs} of {each['vo']}, and lets none in there"
    return f"{each['name']}: no waiting job of {each['vo']} requires it"
