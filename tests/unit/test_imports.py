"""No module imports itself through others: contracts compare packages, which may import each other by `:`."""

from graphlib import TopologicalSorter

import grimp

PACKAGES = ("agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not where an import stands in a function: `TopologicalSorter` names the modules of a circle."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    assert len(imports) > 400
    TopologicalSorter(imports).prepare()
