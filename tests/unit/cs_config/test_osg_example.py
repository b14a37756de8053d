from pathlib import Path

from cs_config import validate
from cs_config.classes import queue_class_index, queue_classes
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from requirements.record import parse_record

RFC_JOB = {"SoftwareTag": ["AppVersion1", "AppVersion2"], "CPUModel": "Intel Xeon", "Memory": 4000}


def test_the_real_grid_loads_whole(osg_path: Path) -> None:
    config = validate.load_file(osg_path)
    assert len(config.sites) == 250
    assert len({(address.site, address.ce) for address in config.addresses}) == 592
    assert len(config.addresses) == 980


def test_there_is_nothing_to_complain_about(osg_path: Path) -> None:
    report = validate.report(osg_path.read_bytes(), osg_path.name)
    assert report.errors == report.warnings == ()


def test_every_queue_resolves_for_every_vo(osg: Configuration) -> None:
    assert len(osg.vos) > 60
    for vo in osg.vos:
        for address in osg.addresses:
            parameters = osg.parameters(address, vo)
            assert parameters["Name"].level == "Site"
            assert all(parameter.line > 0 for parameter in parameters.values())
            assert dict(osg.values(address, vo)) == {name: each.value for name, each in parameters.items()}


def test_every_usable_queue_is_in_one_class(osg: Configuration) -> None:
    for vo in osg.vos:
        members = [queue for each in queue_classes.queue_classes(osg, vo) for queue in each.queues]
        assert sorted(members) == [address for address in osg.addresses if osg.usable(address, vo)]


def test_queues_are_of_few_classes_though_these_are_exact(osg: Configuration) -> None:
    # As many as there are if case, order and the kind of numbers do not count.
    assert len(queue_classes.queue_classes(osg, "cms")) == 122
    assert sum(len(queue_classes.queue_classes(osg, vo)) for vo in osg.vos) == 581


def test_the_job_of_the_rfc_has_eligible_queues(osg: Configuration) -> None:
    def sites(vo: str) -> set[str]:
        declarations = options_for(osg, vo).job_description.declarations
        return {
            queue.site
            for queue in queue_class_index.eligible_queues(osg, vo, parse_record(RFC_JOB, declarations))
        }

    assert sites("cms") == {"OSG.CERN.ch", "OSG.KIT.de"}
    assert sites("dune") == {"OSG.CERN.ch", "OSG.UChicago.us", "OSG.BR_CBPF.br"}
    assert sites("ligo") == {"OSG.ASGC.tw", "OSG.UChicago.us"}
    assert sites("nobody") == set()
