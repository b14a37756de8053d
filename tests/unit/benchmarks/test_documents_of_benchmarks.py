from pathlib import Path

from benchmarks import documents, lhcb, prototype
from cs_config import validate
from cs_config.options.operations import options_for
from matcher.index.requirement_class_index import ClassIndex
from matcher.request import match_request
from optimizers.description.description import parse_description
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.class_derivation import CLASSIFIED, derive_class

OPTIONS = options_for(validate.parse(documents.tree()), lhcb.VO)


def derive(count: int) -> list[RequirementClass]:
    described = (parse_description(each, OPTIONS) for each in documents.descriptions(count))
    return [
        derive_class(
            lhcb.VO, {name: getattr(each, name) for name in CLASSIFIED if each.states(name)}, OPTIONS
        )
        for each in described
    ]


def test_jobs_have_the_tail_that_the_specification_wants() -> None:
    classes = derive(1_000)
    assert len(set(classes)) > 900
    for rare in (
        [each for each in classes if each.gpus],
        [each for each in classes if each.architecture == "aarch64"],
        [each for each in classes if each.processors_min >= 32],
        [each for each in classes if each.tag_expression],
    ):
        assert 0 < len(rare) < len(classes) / 2


def test_nearly_every_node_has_a_job_that_fits() -> None:
    index = ClassIndex()
    for number, asked in enumerate(derive(1_000)):
        index.add(number, asked)
    offered = [match_request.read_resource(each) for each in documents.nodes()[::40]]
    assert not any(each.warnings for each in offered)
    fitting = [index.mask(each.resource, frozenset()) for each in offered]
    assert sum(map(bool, fitting)) > 0.9 * len(fitting)


def test_every_node_is_at_a_queue_of_the_configuration() -> None:
    places = {f"{each['site']}/{each['GridCE']}/{each['Queue']}" for each in documents.nodes()}
    assert places == {str(address) for address in validate.parse(documents.tree()).addresses}


def test_a_prototype_that_is_not_there_is_not_measured(tmp_path: Path) -> None:
    for tree in (None, tmp_path):
        [result] = prototype.run(tree, jobs=1, seconds=0)
        assert "not measured" in str(result.values["what"])
