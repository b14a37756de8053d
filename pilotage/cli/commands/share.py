"""`pilotage share`: shares of groups and owners, and which of two jobs comes first."""

from typing import Annotated, Any

from rich.console import Group, RenderableType

from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage
from pilotage.cli.output import Entry
from requirements.errors import format_count

_DAY = 86_400.0


def show(
    *,
    vo: Annotated[str | None, options.option("VO", "VO (default: that of your token).")] = None,
    site: Annotated[str | None, options.option("SITE", "The floors of the VOs at this site instead.")] = None,
    service: ServiceOptions,
) -> None:
    """Show the shares of the groups and owners of a VO that have waiting jobs, in the order of their size.

    Configured, the use that corrects them, and in force; Part is of the VO's matches by pilots that can run
    everything; jobs that no queue is eligible for take a part of In force, and have none of Part. Users see
    groups and themselves, VO admins all owners. With --site: what each VO has at least
    there (Floors), what it has, and whether its jobs come first.

    Example: `pilotage share show --vo cms`.
    """
    if site is not None and vo is not None:
        raise WrongUsage("--vo and --site: give one of them")
    if site is not None:
        service.show(lambda client: _pick_floors(client.site(site)), _floors)
    else:
        service.show(lambda client: client.shares(vo), _shares)


def compare(
    first: Annotated[int, options.argument("JOB", "The job that comes first, or should.")],
    second: Annotated[int, options.argument("OTHER", "The job that waits behind it.")],
    *,
    service: ServiceOptions,
) -> None:
    """Tell why one job comes before another: queues, tiers of types, shares, priorities, submission.

    Example: `pilotage share compare 42 57`.
    """
    service.show(lambda client: client.compare_jobs(first, second), _precedence)


def _pick_floors(site: Entry) -> Entry:
    return {name: site[name] for name in ("site", "floors")}


def _floors(found: Entry) -> RenderableType:
    headings = ("VO", "#At least", "#Has cores", "#Of all", "#Waiting", "State")
    rows = [
        (
            each["vo"],
            describe_floor(each),
            each["cores"],
            each["total"],
            each["waiting"],
            describe_standing(each),
        )
        for each in found["floors"]
    ]
    return output.table(headings, rows) if rows else f"{found['site']}: no VO has a floor (Floors)"


def describe_floor(floor: Entry) -> str:
    """What a VO has at least, as text for people."""
    cores, percent = floor["floor_cores"], floor["floor_percent"]
    return format_count(cores, "core") if percent is None else f"{percent:g} %"


def describe_standing(floor: Entry) -> str:
    """Whether jobs of a VO come first for its floor, as text for people."""
    if not floor["is_below"]:
        return "reached"
    return "lent" if floor["waiting"] == 0 else "comes first"


def _shares(found: Entry) -> RenderableType:
    are_stuck = any(each.get("stuck") for each in found["shares"])  # a service of 1.0 does not tell
    waiting = ("#Waiting", "#No queue") if are_stuck else ("#Waiting",)
    headings = ("#Place", "Group", "Owner", *waiting, "#Configured", "Used", "#In force", "#Part")
    by_use = "corrected by use" if found["is_corrected"] else "not corrected by use (EnableSharesCorrection)"
    rows = [_row(each, are_stuck=are_stuck) for each in found["shares"]]
    title = f"{found['vo']}: shares are {by_use}"
    return output.table(headings, rows, title=title) if rows else f"{found['vo']}: no job waits"


def _row(each: Entry, *, are_stuck: bool) -> tuple[object, ...]:
    owner = f"{each['owner']} (you)" if each["is_own"] else each["owner"]
    return (
        *(each["place"], each["owner_group"], owner, f"{each['waiting']:,}"),
        *([f"{each['stuck']:,}"] if are_stuck else []),
        f"{each['configured']:,.4g}",
        *("; ".join(map(_use, each["used"])), f"{each['share']:,.4g}", f"{100 * each['part']:.1f} %"),
    )


def _use(used: Entry) -> str:
    unit = "core h" if used["measure"] == "WallTime" else "jobs"
    over = "half-life" if used["half_life"] else "last"
    return f"{used['amount']:,.1f} {unit}, {over} {(used['half_life'] or used['time_span']) / _DAY:g} d"


def _precedence(found: Entry) -> RenderableType:
    first, second = found["first"], found["second"]
    rows: list[tuple[Any, ...]] = []
    if found["queues"]:
        one, other, both = found["queues"]
        rows += [("eligible queues", one, other), ("of these for both", both, both)]
    rows += [(each["what"], f"{each['first']:.4g}", f"{each['second']:.4g}") for each in found["steps"]]
    if found["weights"]:
        rows.append(("weight of the task queue", *(f"{each:.4g}" for each in found["weights"])))
    headings = ("", f"#Job {first}", f"#Job {second}")
    return Group(found["headline"], *([output.table(headings, rows)] if rows else []))
