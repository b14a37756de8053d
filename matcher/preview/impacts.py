"""Values of the configuration with the waiting jobs that they exclude."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from cs_config.editing import history, show
from cs_config.editing.editor import ConfigEditor
from cs_config.editing.history import Blamed
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_report, work_budget
from matcher.explain.queue_report import ParameterImpact
from requirements.values import fold
from taskqueue.task_queues.listing import WaitingClass

#: Lists the classes with waiting jobs of VOs.
ListWaiting = Callable[[Connection, Collection[str]], Sequence[WaitingClass]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlamedParameter(Blamed):
    """A value, its last change and its effect."""

    excludes: ParameterImpact | None  #: None: not a parameter of a queue


def blame_values(
    editor: ConfigEditor, config: Configuration, list_waiting: ListWaiting, *, path: str, vo: str | None
) -> list[BlamedParameter]:
    """The values of `history.blame_values`, those of a queue with the jobs of the VO that they exclude."""
    found = history.blame_values(editor, config, path=path, vo=vo)
    impacts: Mapping[str, ParameterImpact] | None = None
    if vo is not None and show.is_queue(editor.live.current, path):
        impacts = _list_impacts(editor, list_waiting, path, fold(vo))
    return [
        BlamedParameter(
            line=each.line,
            since=each.since,
            excludes=None if impacts is None else impacts.get(fold(each.line.path), ParameterImpact()),
        )
        for each in found
    ]


def _list_impacts(
    editor: ConfigEditor, list_waiting: ListWaiting, path: str, vo: str
) -> Mapping[str, ParameterImpact]:
    """Jobs excluded by each parameter of a queue, of the classes that one request can evaluate."""
    config = editor.live.current
    names = show.split_path(config, path)
    address = QueueAddress(site=names[2], ce=names[4], queue=names[6])
    with editor.transactions.reading() as conn:
        waiting = work_budget.choose_classes(list_waiting(conn, [vo])).chosen
        needed = config.admission(address, vo) is not None
        ads = job_conditions.read_job_ads(conn, config, waiting, needed=needed)
    return queue_report.parameter_impacts(config, address, waiting, ads)
