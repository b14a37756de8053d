"""`pilotage site`: advertisements, throttles, limits, bans and excluded nodes of sites.

`advertise --watch` repeatedly counts jobs, by a batch system's commands or by one of the site.
"""

import json
import math
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Group, RenderableType

from pilotage.cli import options, output, reason_options
from pilotage.cli.commands import downtime, share
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import CommandRefused, WrongUsage, one_line
from pilotage.cli.output import Column, Entry
from pilotage.client.api import ApiError, ServiceAway, ServiceClient
from pilotage.fabric.batch.batch_system import BatchSystemAway
from requirements.measured_values import LOAD
from requirements.values import fold


def show_limits(site: options.Site, *, service: ServiceOptions) -> None:
    """Show the limits of a site by kind of job and by throttle, the floors of its VOs, and their current use.

    Operators and VO admins set running limits and matching delays in the operations options, site admins at
    the node of the site, as throttles and floors.

    Example: `pilotage site limits LCG.CERN.ch`.
    """
    with service.connect() as client:
        found = client.site(site)
    chosen = {name: found[name] for name in ("site", "ban", "limits", "floors", "throttles")}
    service.emit(chosen, lambda: _limits_table(chosen))


def _limits_table(site: Entry) -> RenderableType:
    rows = list(_rows(site))
    banned = f"{site['site']} is banned: {site['ban']['reason']}" if site["ban"] else None
    headings = ("Site/CE/Queue", "Of", "VO", "Allowed", "Now", "State")
    return output.table(headings, rows, title=banned) if rows else banned or f"{site['site']}: no limit"


def _rows(site: Entry) -> Iterator[tuple[object, ...]]:
    for each in site["limits"]:
        allowed, now = _running(each) if each["option"] == "RunningLimit" else _delayed(each)
        what = f"{each['attribute']} {each['value']}" + (", the site's own" if each.get("of_site") else "")
        yield each["scope"], what, each["vo"], allowed, now, "full" if each["full"] else None
    for each in site["floors"]:
        state = share.describe_standing(each)
        yield (
            site["site"],
            "floor",
            each["vo"],
            f"at least {share.describe_floor(each)}",
            f"{each['cores']} of {each['total']} cores",
            state,
        )
    for each in site["throttles"]:
        room = "any" if each["room"] is None else f"room for {each['room']}"
        yield each["scope"], f"throttle {each['policy']}", None, each["limits"], room, each["why"]


def _running(limit: Entry) -> tuple[str, str]:
    curb = limit.get("curb")
    ramp = "" if curb is None else f", from {curb} on one in {limit['seconds']:g} s"
    bounds, there = [], [f"{limit['there']}"]
    if limit["most"] is not None:
        bounds.append(f"{limit['most']}")
    if (most_cores := limit.get("most_cores")) is not None:
        bounds.append(f"{most_cores} cores")
        there.append(f"{limit['cores']} cores")
    return f"{' and '.join(bounds)} at a time{ramp}", f"{' with '.join(there)} there"


def _delayed(delay: Entry) -> tuple[str, str]:
    return f"one in {delay['seconds']:g} s, {delay['burst']} at once", f"{int(delay['tokens'])} at once"


#: Syntax that only a shell understands, outside of quotation marks.
_SHELL = re.compile(r"[;|&<>`]|\$\(")
_LDIF = re.compile(r"^dn::? ", re.MULTILINE)
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)


#: Returns the counts of a scope; called with the seconds that it may take.
Count = Callable[[float], Mapping[str, object]]


def advertise_repeatedly(client: ServiceClient, scope: str, count: Count, *, every: float) -> None:
    """Advertise counts until interrupted; failures, and the first success after them, are reported."""
    has_failed = True
    while True:
        began = time.monotonic()
        try:
            counts = advertise_once(client, scope, count, patience=every)
            if has_failed:
                sys.stderr.write(f"pilotage: {scope}: advertised {_format(counts)}, next in {every:g} s\n")
            has_failed = False
        except (ServiceAway, ApiError, WrongUsage, BatchSystemAway) as error:
            has_failed = True
            sys.stderr.write(f"pilotage: {scope} was not advertised: {one_line(str(error))}\n")
        time.sleep(max(0.0, began + every - time.monotonic()))


def _format(counts: Mapping[str, object]) -> str:
    shown = [f"{name}={value}" for name, value in counts.items() if not isinstance(value, list)]
    return one_line(" ".join(shown))[:300]


def advertise_once(
    client: ServiceClient, scope: str, count: Count, *, patience: float
) -> Mapping[str, object]:
    """Fetch a watermark, count, advertise; this order avoids counting a job twice or not at all."""
    as_of = client.watermark(scope.partition("/")[0])
    counts = count(max(patience, 1))
    print_warnings(client.advertise(scope, {**counts, "as_of": as_of}))
    return counts


def choose_counter(watch: str, batch_queues: Sequence[str], dialect: Path | None) -> Count:
    """The counter of `--watch`: of a kind of batch system, or the output of a command."""
    from pilotage.fabric.batch import settings as batch_settings  # imported late: no other command needs it

    if watch in batch_settings.installed_kinds():
        return add_load(count_batch_jobs(watch, batch_queues, dialect))
    if batch_queues or dialect:
        kinds = ", ".join(batch_settings.installed_kinds())
        raise WrongUsage(f"--batch-queue and --dialect are for a batch system: --watch {kinds}")
    return add_load(count_by_command(split(watch)))


def add_load(count: Count) -> Count:
    """Counts with the load of this host as `Load`, unless they state their own."""
    from pilotage.fabric.batch.measurements import measure_load
    from pilotage.fabric.batch.shell import LocalShell

    def count_and_measure(patience: float) -> Mapping[str, object]:
        counts = count(patience)
        if any(fold(name) == fold(LOAD) for name in counts):
            return counts
        load = None
        with suppress(BatchSystemAway):  # the counts are advertised all the same
            load = measure_load(LocalShell())
        return counts if load is None else {**counts, LOAD: load}

    return count_and_measure


def count_by_command(words: list[str]) -> Count:
    """Counts as the output of a command."""
    return lambda patience: parse_counts(_run_command(words, patience))


def count_batch_jobs(kind: str, batch_queues: Sequence[str], dialect: Path | None) -> Count:
    """Count the jobs of a batch system by its own commands, as `CurrentPendingJobs` and others."""
    from pilotage.cli import settings
    from pilotage.fabric.batch import settings as batch_settings
    from pilotage.fabric.batch.dialect.dialect import InvalidDialect

    content = None if dialect is None else settings.load_yaml(dialect, InvalidDialect)
    try:
        counter = batch_settings.open_counter(kind, batch_queues, content)
    except ValueError as error:
        raise WrongUsage(f"--watch {kind}: {one_line(str(error))}") from None

    def count(_patience: float) -> Mapping[str, object]:
        try:
            found = counter()
        except ValueError as error:
            raise WrongUsage(f"--batch-queue: {error}") from None
        return {
            "CurrentJobs": found.waiting + found.running,
            "CurrentPendingJobs": found.waiting,
            "CurrentRunningJobs": found.running,
        }

    return count


def split(command: str) -> list[str]:
    """The words of a command, which runs without a shell."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise WrongUsage(f"--watch {command!r:.80}: {str(error).lower()}") from None
    if not words:
        raise WrongUsage("--watch: no command")
    if sign := _SHELL.search(_QUOTED.sub("", command)):
        instead = shlex.quote(f"sh -c {shlex.quote(command)}")
        raise WrongUsage(
            f"--watch: the command runs without a shell, which {sign[0]!r} needs; write --watch {instead}"
        )
    return words


def print_warnings(answer: Mapping[str, Any]) -> None:
    """Print the warnings of a response."""
    for each in answer.get("warnings", ()):
        sys.stderr.write(f"pilotage: {one_line(each)}\n")


def _run_command(words: list[str], patience: float) -> str:
    name = words[0]
    try:
        run = subprocess.run(words, capture_output=True, text=True, timeout=patience, check=False)
    except FileNotFoundError:
        raise WrongUsage(f"no command {name}") from None
    except OSError as error:
        raise WrongUsage(f"{name} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise WrongUsage(f"{name} took longer than {patience:g} s and was ended") from None
    except UnicodeDecodeError:
        raise WrongUsage(f"{name} prints no UTF-8 text") from None
    if run.returncode:
        last = one_line((run.stderr.strip().splitlines() or [""])[-1])
        how = f"with status {run.returncode}" if run.returncode > 0 else f"by signal {-run.returncode}"
        raise WrongUsage(f"{name} ended {how}" + (f": {last:.200}" if last else ""))
    return run.stdout


def parse_counts(text: str) -> dict[str, object]:
    """The counts in the output of a command: a JSON object, lines of K=V, or GLUE 2 in LDIF."""
    if _LDIF.search(text):
        return _parse_ldif(text)
    if not text.lstrip().startswith("{"):
        return pairs(line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#"))
    try:
        counts: dict[str, object] = json.loads(text, object_pairs_hook=_unique_entries)
    except json.JSONDecodeError as error:
        raise WrongUsage(f"no JSON object: {error.msg.lower()} in line {error.lineno}") from None
    return counts


def _parse_ldif(text: str) -> dict[str, object]:
    from cs_config.errors import ConfigError  # imported late: no other command needs it
    from cs_config.formats import ldif

    try:
        return ldif.read_counts(text, "LDIF")
    except ConfigError as error:
        raise WrongUsage(one_line(str(error))) from None


def pairs(words: Iterable[str]) -> dict[str, object]:
    """Names and values of `CurrentJobs=12` …; a value is a number, a bool or text."""
    found: list[tuple[str, object]] = []
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name.strip():
            raise WrongUsage(f"{word!r:.80} is not K=V")
        found.append((name.strip(), _value(value.strip())))
    return _unique_entries(found)


_NAME = re.compile(r"[\w.:@+-]+")


def _unique_entries(entries: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Names and values; a repeated name is ambiguous, and one with other signs can be read by nothing."""
    names = Counter(name.lower() for name, _ in entries)
    for name, _ in entries:
        if not _NAME.fullmatch(name):
            of_ad = "; ads of GLUE 1 are for `pilotage config import classad`" if name.startswith("[") else ""
            raise WrongUsage(
                f"{name!r:.80} is not a valid name, allowed are letters, digits and . _ : @ + -{of_ad}"
            )
        if names[name.lower()] > 1:
            raise WrongUsage(f"{name:.80} is given {names[name.lower()]} times")
    return dict(entries)


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return {"true": True, "false": False}.get(text.lower(), text)


def list_sites(*, service: ServiceOptions) -> None:
    """List the sites with their bans and throttles.

    Example: `pilotage site list`.
    """
    with service.connect() as client:
        found = output.read_pages("sites", client.sites)
    rows = [
        {**scope, "ban": site["ban"], "downtimes": site.get("downtimes")}
        for site in found.entries
        for scope in _scopes(site)
    ]
    service.emit({"sites": found.entries, "next": found.next}, lambda: output.list_table(_SCOPES, rows))


def list_processes(*, service: ServiceOptions) -> None:
    """List directors and gateways, when they last reported, and the problems of their last cycle.

    Example: `pilotage site processes`.
    """
    service.show(
        lambda client: {"processes": client.site_processes()},
        lambda found: output.list_table(_PROCESSES, found["processes"]),
    )


def forget(
    name: Annotated[str, options.argument("NAME", "Director or gateway, as `site processes` lists it.")],
    *,
    service: ServiceOptions,
) -> None:
    """Forget a director or gateway that was taken out of service, so that it raises no alert.

    Example: `pilotage site forget north`.
    """
    with service.connect() as client:
        found = client.forget_process(name)
    if not found:
        raise CommandRefused(f"there is no director or gateway {name!r} (pilotage site processes)")
    service.emit({"processes": found}, lambda: output.list_table(_PROCESSES, found))


def _list_paused(process: Entry) -> list[str]:
    """The queues of a director that get no pilots now; a service of 1.0 reports none."""
    now = datetime.now(UTC)
    return [
        f"{each['queue']} until {output.local_time(each['paused_until'])}"
        for each in process.get("queues") or ()
        if each["paused_until"] and datetime.fromisoformat(each["paused_until"]) > now
    ]


_PROCESSES: Mapping[str, Column] = {
    "Name": "name",
    "Kind": "kind",
    "VO": "vo",
    "Host": lambda each: each["holder"].partition(":")[0],
    "Last report": lambda each: f"{output.ago(each['seen_at'])}{', overdue' if each['is_overdue'] else ''}",
    "#Too large jobs": lambda each: sum(slot["jobs"] for slot in each["too_small"]),
    "Paused": lambda each: ", ".join(_list_paused(each))[:200] or None,
    "Problems": lambda each: "; ".join(each["problems"])[:200],
}


def show(site: options.Site, *, service: ServiceOptions) -> None:
    """Show the ban, downtimes and throttles of a site, all that it advertises, and handled job types.

    Example: `pilotage site show LCG.CERN.ch`.
    """
    service.show(lambda client: client.site(site), _details)


def advertise(
    site: Annotated[str, options.argument("SITE[/CE[/QUEUE]]", "Site, CE or queue to advertise.")],
    state: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="K=V", help="Counts, such as CurrentJobs=12 CurrentSubmittingJobs=1.", show_default=False
        ),
    ] = None,
    *,
    watch: Annotated[
        str | None,
        options.option(
            "KIND|COMMAND",
            "Repeatedly count the jobs of a batch system (slurm, gridengine, pbs, lsf, htcondor, command), "
            "or run a command, which prints K=V lines, a JSON object or GLUE 2 in LDIF.",
        ),
    ] = None,
    batch_queue: Annotated[
        list[str] | None,
        options.option("NAME", "Batch queue to count; may be repeated (default: all)."),
    ] = None,
    dialect: Annotated[
        Path | None,
        options.option("FILE", "Dialect of the batch system `command`, or changes of another one's (YAML)."),
    ] = None,
    every: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds between runs of the command.")
    ] = 300,
    service: ServiceOptions,
) -> None:
    """Advertise the numbers of jobs of a site, CE or queue; once, or repeatedly from a command.

    --watch fetches a watermark before each count, so that jobs matched since then are counted exactly. With a
    kind of batch system it counts by that system's own commands: CurrentJobs, CurrentPendingJobs and
    CurrentRunningJobs, of all users. The load per core of this host is advertised as Load.
    Without a watermark, jobs matched since the previous advertisement stay reserved.

    Example: `pilotage site advertise LCG.CERN.ch --watch slurm --every 60`.
    """
    if (watch is None) == (not state):
        raise WrongUsage("give K=V, or --watch COMMAND, which prints them")
    if watch is None and (batch_queue or dialect):
        raise WrongUsage("--batch-queue and --dialect are for --watch with a batch system")
    counter = None if watch is None else choose_counter(watch, batch_queue or (), dialect)
    with service.connect() as client:
        if counter is not None:
            advertise_repeatedly(client, site, counter, every=every)
            return
        answer = client.advertise(site, pairs(state or []))
    print_warnings(answer)
    service.emit(answer, lambda: f"{site}: advertised")


def ban(
    site: options.Site,
    *,
    reason: Annotated[str, reason_options.reason_option("Reason, shown to users.")],
    until: Annotated[
        str | None, reason_options.time_option("End of the ban (default: until `site allow`)")
    ] = None,
    service: ServiceOptions,
) -> None:
    """Send no jobs to a site, except those of type Test.

    Example: `pilotage site ban LCG.CERN.ch --reason 'disk server is away' --until '2026-05-04 12:00'`.
    """
    service.show(lambda client: client.ban(site, reason=reason, until=until), lambda _: f"{site}: banned")


def allow(site: options.Site, *, service: ServiceOptions) -> None:
    """Send jobs to a banned site again.

    Example: `pilotage site allow LCG.CERN.ch`.
    """
    service.show(lambda client: client.allow(site), lambda _: f"{site}: allowed")


def list_nodes(site: options.Site, *, service: ServiceOptions) -> None:
    """List the nodes that take no jobs for a while, since pilots there ended because of their host.

    Each VO's pilots count apart. From the time of the next trial on one pilot may try the node: the first job
    that ends there readmits it.

    Example: `pilotage site nodes LCG.CERN.ch`.
    """
    service.show(
        lambda client: {"nodes": client.excluded_nodes(site)},
        lambda found: _nodes_table(found["nodes"], f"{site}: no node is excluded"),
    )


def list_hardware(
    site: Annotated[str | None, options.argument("SITE", "Only this site.")] = None,
    *,
    service: ServiceOptions,
) -> None:
    """List the hardware that pilots had in the last 90 days, as their first requests for jobs stated it.

    Example: `pilotage site hardware LCG.CERN.ch`.
    """
    service.show(
        lambda client: {"hardware": client.seen_hardware(site)},
        lambda found: (
            output.list_table(_HARDWARE, found["hardware"]) if found["hardware"] else "no pilot was seen"
        ),
    )


def readmit(
    site: options.Site,
    node: Annotated[str, options.argument("NODE", "Node, as `site nodes` lists it.")],
    *,
    service: ServiceOptions,
) -> None:
    """Give a node jobs of all VOs again at once, after it was repaired.

    Example: `pilotage site readmit LCG.CERN.ch node17`.
    """
    service.show(
        lambda client: {"nodes": client.readmit_node(site, node)},
        lambda _: f"{node} of {site}: readmitted",
    )


def _nodes_table(found: Sequence[Entry], if_none: str) -> RenderableType:
    return output.list_table(_NODES, found) if found else if_none


_NODES: Mapping[str, Column] = {
    "Node": "node",
    "VO": "vo",
    "Since": lambda each: output.local_time(each["since"]),
    "Next trial": lambda each: output.local_time(each["next_trial_at"]),
    "Until": lambda each: output.local_time(each["until"]),
    "Why": lambda each: " ".join(each["reason"].split())[:200],
}


_HARDWARE: Mapping[str, Column] = {
    "Site": "site",
    "Cores": "processors",
    "Memory": lambda each: _format_mb(each["max_ram_mb"]),
    "Disk": lambda each: _format_mb(each["scratch_mb"]),
    "Processor": lambda each: each["cpu_level"] or each["architecture"],
    "GPUs": lambda each: _format_gpus(each),
    "Tags": lambda each: " ".join(each.get("node_tags") or ()),
    "Last seen": lambda each: each["last_seen_at"][:10],
}


def _format_mb(amount: float | None) -> str | None:
    return None if amount is None else f"{amount:g} MB"


def _format_gpus(seen: Entry) -> str | None:
    """Number, vendor, architecture, memory and runtime of GPUs."""
    if not seen["gpus"]:
        return None
    architecture = seen["gpu_architecture"] and f"sm_{seen['gpu_architecture']}"
    runtime = (version := seen.get("gpu_runtime")) and f"runtime {version}"
    facts = (seen["gpus"], seen["gpu_vendor"], architecture, _format_mb(seen["gpu_memory_mb"]), runtime)
    return " ".join(str(each) for each in facts if each)


def _scopes(site: Entry) -> list[Entry]:
    """The throttles of a site; without one, the site itself."""
    unlimited = {"scope": site["site"], "policy": None, "open": True}
    return site["throttles"] or [unlimited | dict.fromkeys(("room", "reserved", "why"))]


#: Of a throttle, with the ban of its site.
_SCOPES: Mapping[str, Column] = {
    "Site/CE/Queue": "scope",
    "Ban": lambda each: "banned" if each["ban"] else None,
    "Policy": "policy",
    "Open": lambda each: each["open"] and not each["ban"] and not _find_downtime(each),
    "#Room": "room",
    "#Reserved": "reserved",
    "Why": lambda each: f"banned: {each['ban']['reason']}" if each["ban"] else _why_closed(each),
}


def _find_downtime(scope: Entry) -> Entry | None:
    """The downtime that closes all of a scope now; of several the one that ends last."""
    within = f"{scope['scope']}/"
    closing = (each for each in scope.get("downtimes") or () if each["is_closing"])
    here = (each for each in closing if within.startswith(f"{each['place']}/"))
    return max(here, key=lambda each: datetime.fromisoformat(each["ends"]), default=None)


def _why_closed(scope: Entry) -> str | None:
    """Why a scope that is not banned takes no jobs, or takes fewer; that a downtime comes."""
    if (down := _find_downtime(scope)) is not None:
        return f"downtime until {output.local_time(down['ends'])}: {down['reason']}"
    if scope["why"] is None and (ahead := scope.get("downtimes")):
        first = ahead[0]
        return f"{first['place']}: downtime from {output.local_time(first['begins'])}: {first['reason']}"
    return cast(str | None, scope["why"])


def _details(site: Entry) -> RenderableType:
    hidden = {"scope", "reservations", "advertisement", "gauges", "as_of"}  # `--json` shows all
    shown: list[RenderableType] = [
        output.facts({name: value for name, value in each.items() if name not in hidden}, title=each["scope"])
        for each in site["throttles"]
    ]
    if site["ban"]:
        shown.insert(0, output.facts(site["ban"], title=f"{site['site']} is banned"))
    if ahead := site.get("downtimes"):
        shown.append(downtime.table(ahead))
    if handled := site.get("job_types"):
        shown.append(
            output.table(("Site/CE/Queue", "Job types handled", "Advertised", "Stale"), _types(handled))
        )
    if advertised := site.get("advertised"):
        shown.append(output.list_table(_ADVERTISED, advertised))
    return (
        Group(*shown) if shown else f"{site['site']}: no ban, no throttle, no job manager, no advertisement"
    )


_ADVERTISED: Mapping[str, Column] = {
    "Site/CE/Queue": "scope",
    "Advertised": "name",
    "Value": "value",
    "Age": lambda each: f"{output.ago(each['advertised_at'])}{', stale' if each['stale'] else ''}",
    "Declared": lambda each: "yes" if each["declared"] else "no",
    "Read by": lambda each: ", ".join(each["readers"]) or "nothing",
}


def _types(handled: Sequence[Entry]) -> list[tuple[object, ...]]:
    return [
        (each["scope"], each["job_types"], output.local_time(each["advertised_at"]), each["stale"])
        for each in handled
    ]
