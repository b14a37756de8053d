"""`pilotage config preview`: what a change would do to what waits and runs now."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from pilotage.cli import config_lines, config_wanted, options, output
from pilotage.cli.config_edit import Removed
from pilotage.cli.config_lines import Answer
from pilotage.cli.connection import connect
from pilotage.cli.failures import WrongUsage

#: Entries of a list that are printed.
_MOST = 10


def preview(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="YAML that would be the configuration.")
    ] = None,
    *,
    edits: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="As `config set`; may be repeated."),
    ] = None,
    removed: Removed = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Say what a change would do to jobs that wait and run now; nothing is changed.

    Which pools gain or lose queues, which waiting jobs become stuck or free, what runs on queues that go,
    what would be closed at once, and which parameters help nobody.
    """
    if (file is None) == (not edits and not removed):
        raise WrongUsage("say a FILE, or --set PATH=VALUE and --remove PATH")
    with connect(home=home, url=url) as client:
        if file is not None:
            wanted = config_wanted.of_file(client, file)
        else:
            wanted = config_wanted.of_words(client, edits or (), removed or ())
        if not wanted.changed:
            typer.echo(f"nothing would change in version {wanted.version}", err=True)
            raise typer.Exit
        answer = client.preview_config(wanted.body)
    output.emit(answer, as_json=as_json, render=lambda: render(answer))


def render(answer: Answer) -> RenderableType:
    """A preview for people."""
    return Group(told(answer["changes"], answer), "nothing is changed yet")


def told(changes: Sequence[Answer], answer: Answer | None) -> RenderableType:
    """Changes, and what they would do if that was asked."""
    return Group(output.escape("\n".join(config_lines.lines(changes))), effects(answer))


def effects(answer: Answer | None) -> RenderableType:
    """What a change would do; nothing if that was not asked."""
    if answer is None:
        return Group()
    lines = output.escape("\n".join(_lines(answer)))
    if not answer["jobs"]:
        return lines
    rows = ((vo, *(n[each] or "" for each in _COUNTS)) for vo, n in answer["jobs"].items())
    headings = ("VO", "#Waiting", "#Become stuck", "#Become free", "#Gain queues", "#Lose queues")
    return Group(output.table(headings, rows), lines)


_COUNTS = ("waiting", "stuck", "freed", "gain", "lose")


def _lines(answer: Answer) -> Iterator[str]:
    totals = answer["totals"]
    yield from (_warning(each) for each in answer.get("warnings", ())[:_MOST])
    yield from _some("queues new", answer["new_queues"], totals["new_queues"])
    yield from _some("queues removed", answer["removed_queues"], totals["removed_queues"])
    yield (
        f"pools: {totals['pools_gaining']} gain queues, {totals['pools_losing']} lose some, "
        f"{totals['pools_without_queue']} are left without any"
    )
    for pool in answer["pools"][:_MOST]:
        yield f"  {pool['pool'][:12]} of {pool['vo']}, {pool['waiting']} waiting: {_queues(pool)}"
    for each in answer["classes"][:_MOST]:
        example = "" if each["example_job"] is None else f", such as {each['example_job']},"
        words = "become stuck without" if each["becomes"] == "stuck" else "become free with"
        yield f"{each['jobs']} jobs of {each['vo']}{example} {words} {_named(each['queues'])}"
    for each in answer["running"][:_MOST]:
        yield (
            f"{each['queue']} goes for {each['vo']}, {each['why']}: "
            f"{each['jobs']} jobs run there, {each['pilots']} pilots"
        )
    yield from (f"{each['scope']} is closed at once: {each['why']}" for each in answer["closed"][:_MOST])
    yield from (_vain(each) for each in answer["in_vain"][:_MOST])


def _warning(each: Answer) -> str:
    meant = f", did you mean {each['suggestion']}?" if each.get("suggestion") else ""
    return f"warning: {each['path']}: {each['message']}{meant}"


def _some(what: str, queues: list[str], number: int) -> Iterator[str]:
    if number:
        yield f"{number} {what}: {_named(queues)}"


def _named(queues: list[str]) -> str:
    return ", ".join(queues[:3]) + (" …" if len(queues) > 3 else "")


def _queues(pool: Answer) -> str:
    gained = f"+{pool['gains']} ({_named(pool['gained'])})" if pool["gains"] else ""
    lost = f"-{pool['loses']} ({_named(pool['lost'])})" if pool["loses"] else ""
    return " ".join(each for each in (gained, lost) if each)


def _vain(each: Answer) -> str:
    if each["jobs"]:
        return f"{each['name']}: {each['jobs']} waiting jobs of {each['vo']} ask for it, all miss it there"
    return f"{each['name']}: no waiting job of {each['vo']} asks for it"
