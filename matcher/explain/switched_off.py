"""Places that are switched off: until when, since when, by whom and why."""

from sqlalchemy import Connection

from cs_config.cache import Cache, derived
from cs_config.editing import reverts
from cs_config.tree import inheritance
from cs_config.tree.address import QueueAddress, node_depth
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import Parameter
from cs_config.versions import store
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from requirements.errors import format_count, format_time
from requirements.values import fold

#: Places that a text names.
_MOST_NAMED = 3


def find_queues(survey: QueueSet, demand: JobDemand) -> int:
    """The queues, as a bit set, that would be eligible if they were switched on."""
    found = survey.admitted & ~survey.enabled
    for failure in survey.failures(demand) if found else ():
        found &= ~failure.queues
    return found


def describe_queues(conn: Connection, config: Configuration, survey: QueueSet, vo: str, queues: int) -> str:
    """Where some queues are switched off for a VO; empty: nowhere."""
    switches: dict[str, Parameter] = {}
    for queue in survey.members(queues):
        if switch := find_switch(config, queue.address, vo):
            switches.setdefault(switch.path, switch)
    texts = [describe_switch(conn, config, each) for each in list(switches.values())[:_MOST_NAMED]]
    if len(switches) > _MOST_NAMED:
        texts.append(f"so are {format_count(len(switches) - _MOST_NAMED, 'other place')}")
    return "; ".join(texts)


def find_switch(config: Configuration, address: QueueAddress, vo: str) -> Parameter | None:
    """The first value that switches a queue off for a VO (empty: for all), from its site down; None: none."""
    return inheritance.find_switch(config.levels[address], fold(vo))


def describe_switch(conn: Connection, config: Configuration, switch: Parameter) -> str:
    """A place that is switched off, as text for people."""
    names = switch.path.split("/")
    place = "/".join(names[2 : node_depth(names) : 2])
    due = next((each.due for each in reverts.list_reverts(conn) if each.path == switch.path), None)
    until = f" until {format_time(due)}" if due else ""
    return f"{place} is drained (Enabled: false){until}{_describe_change(conn, config, switch.path)}"


def _describe_change(conn: Connection, config: Configuration, path: str) -> str:
    """Since when a value is there, by whom and why.

    Why is the message of a version that changed nothing else: others may be about what is not for everybody.
    """

    def read() -> str:
        since = store.find_blame(conn, [path], newest=config.version).get(path)
        if since is None:
            return ""
        text = f", since {format_time(since.created_at)} by {since.author}"
        [(_, changed)] = store.list_changes_between(conn, since.version, oldest=since.version)
        return f"{text}: {since.message}" if since.message and changed == (path,) else text

    return _changes(config).get(path, read)


@derived
def _changes(_: Configuration) -> Cache[str, str]:
    """What `_describe_change` has found, by path."""
    return Cache(1000, measure=lambda path, text: 300 + len(path) + 2 * len(text), most=1 << 20)
