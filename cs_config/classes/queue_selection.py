"""Selection of queues by requirements or by parameters of queue and CE.

Source: RFC #7's helper for eligible nodes of type Queue.
"""

from collections.abc import Mapping

from cs_config.classes.class_index import eligible_classes
from cs_config.options.operations import options_for
from cs_config.tree import glue, inheritance
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.errors import InvalidRequest, Problem, did_you_mean
from requirements.record.declarations import Declarations
from requirements.record.record import Record, parse_record
from requirements.values import Value, fold

#: Site → CE → queue → its effective parameters.
NodeTree = dict[str, dict[str, dict[str, dict[str, Value]]]]


def eligible_queues(config: Configuration, vo: str, requirements: Requirements) -> frozenset[QueueAddress]:
    """The queues that the VO may use now where some node may fulfil the requirements."""
    return frozenset(queue for each in eligible_classes(config, vo, requirements) for queue in each.queues)


def get_eligible_nodes(
    config: Configuration,
    *,
    vo: str,
    node: str = "Queue",
    ce: Mapping[str, object] | None = None,
    queue: Mapping[str, object] | None = None,
) -> NodeTree:
    """Select queues that a VO may use by effective parameters of the queue and of its CE; both must match.

    Raises InvalidInput for values that cannot be compared, and for another type of node than `Queue`.
    """
    if node != "Queue":
        message = f"{node!r} is no type of node, allowed is Queue"
        raise InvalidRequest(
            [Problem(path="node", message=message, suggestion=did_you_mean(node, ["Queue"]))]
        )
    declarations = options_for(config, vo).job_description.declarations
    of_ce = parse_record(ce, declarations, "ce") if ce else None
    of_queue = parse_record(queue, declarations, "queue") if queue else None
    queues = frozenset(config.addresses) if of_queue is None else eligible_queues(config, vo, of_queue)
    tree: NodeTree = {}
    for address in sorted(queues):
        if config.usable(address, vo) and _ce_fits(config, address, vo, of_ce, declarations):
            ces = tree.setdefault(address.site, {})
            ces.setdefault(address.ce, {})[address.queue] = dict(config.values(address, vo))
    return tree


def _ce_fits(
    config: Configuration,
    address: QueueAddress,
    vo: str,
    selection: Record | None,
    declarations: Declarations,
) -> bool:
    if selection is None:
        return True
    parameters = inheritance.effective_parameters(config.levels[address][:2], fold(vo))
    nodes = inheritance.list_attributes(parameters.values())
    alike = nodes.without_these(inheritance.parameter_values(parameters))
    return evaluator.eligible(selection, glue.build_ad(alike), declarations, nodes)
