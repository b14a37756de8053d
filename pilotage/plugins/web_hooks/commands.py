"""`pilotage hook`: web hooks of a VO, and their deliveries."""

from collections.abc import Mapping
from typing import Annotated, Final

from rich.console import Group

from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.output import Column

#: Of the routes.
_PATH: Final = "/web-hooks"

_Hook = Annotated[int, options.argument("ID", "Number of the web hook.")]
_VO = Annotated[str | None, options.option("VO", "VO of the web hook (default: that of your token).")]

_COLUMNS: Mapping[str, Column] = {
    "ID": "hook_id",
    "VO": "vo",
    "Name": "name",
    "Events": lambda hook: ", ".join(hook["events"]),
    "Address": "url",
    "Waiting": "waiting",
    "Failed tries": "failures",
}
_DELIVERIES: Mapping[str, Column] = {
    "ID": "delivery_id",
    "Event": "event",
    "State": "state",
    "Made": lambda each: output.local_time(each["created_at"]),
    "Tries": "tries",
    "Answer": "answer",
}


def add(
    address: Annotated[str, options.argument("ADDRESS", "https or mailto address that gets the messages.")],
    *,
    name: Annotated[str, options.option("NAME", "Name, unique in the VO.")],
    event: Annotated[
        list[str] | None,
        options.option(
            "EVENT",
            "job.ended (default), pool.without_queue or site.throttled; repeat it for several.",
        ),
    ] = None,
    vo: _VO = None,
    owner: Annotated[str | None, options.option("NAME", "Only the jobs of this owner.")] = None,
    group: Annotated[str | None, options.option("GROUP", "Only the jobs of this JobGroup.")] = None,
    service: ServiceOptions,
) -> None:
    """Make a web hook, for VO admins, and print its secret, which is shown only once.

    A message of the type `test` is sent to it at once; `pilotage hook show` shows whether it arrived.

    Example: `pilotage hook add https://chat.example.org/jobs --name chat --event Failed`.
    """
    wanted = {"vo": vo, "name": name, "url": address, "events": event, "owner": owner, "job_group": group}
    with service.connect() as client:
        made = client.call(
            "POST", _PATH, json={key: value for key, value in wanted.items() if value is not None}
        )
    text = f"web hook {made['hook_id']}; its secret, shown only now:\n{made['secret']}"
    service.emit(made, lambda: text)


def list_hooks(
    *,
    vo: Annotated[str | None, options.option("VO", "Only those of this VO.")] = None,
    service: ServiceOptions,
) -> None:
    """List the web hooks of your VO.

    Example: `pilotage hook list --vo cms`.
    """
    filters = {"vo": vo} if vo else {}
    service.show(
        lambda client: client.call("GET", _PATH, params=filters),
        lambda found: output.list_table(_COLUMNS, found["web_hooks"]),
    )


def show(
    hook: _Hook,
    *,
    limit: Annotated[int, options.option("N", "Latest messages to show.")] = 20,
    service: ServiceOptions,
) -> None:
    """Show a web hook with its latest messages, and what its receiver answered.

    Example: `pilotage hook show 3 --limit 20`.
    """
    with service.connect() as client:
        deliveries = client.call("GET", f"{_PATH}/{hook}/deliveries", params={"limit": limit})
        found = {**client.call("GET", f"{_PATH}/{hook}"), **deliveries}
    facts = {name: value for name, value in found.items() if name not in ("deliveries", "events")}
    facts["events"] = ", ".join(found["events"])
    table = output.list_table(_DELIVERIES, found["deliveries"])
    service.emit(found, lambda: Group(output.facts(facts, title="Web hook"), table))


def send_test(hook: _Hook, *, service: ServiceOptions) -> None:
    """Send a message of the type `test`, also if the last tries failed.

    Example: `pilotage hook test 3`.
    """
    with service.connect() as client:
        client.call("POST", f"{_PATH}/{hook}/test")
    service.emit({"hook_id": hook}, lambda: f"a test of web hook {hook} is sent within seconds")


def remove(hook: _Hook, *, service: ServiceOptions) -> None:
    """Remove a web hook; what was not sent yet is dropped.

    Example: `pilotage hook remove 3`.
    """
    with service.connect() as client:
        client.call("DELETE", f"{_PATH}/{hook}")
    service.emit({"hook_id": hook}, lambda: f"web hook {hook} is removed")
