"""InputData: the sites that have all files of a job."""

from collections.abc import Sequence
from dataclasses import replace

from cs_config.tree.storage import find_common_sites
from optimizers.chain.chain import ChainContext, Done, Failed, Hold, JobContext, Outcome
from optimizers.steps.replica_catalogue import CatalogueUnavailableError


def input_data(candidate: JobContext, context: ChainContext) -> Outcome:
    """Look up the replicas; the job may run at the sites that have every file.

    Source: DIRAC's InputData optimizer.
    """
    files = candidate.description.input_data
    if not files:
        return Done(candidate=candidate)
    try:
        catalogue = context.catalogue(candidate.vo)
        if catalogue is None:
            return Hold(reason="no replica catalogue is configured (JobScheduling/InputDataCatalogue)")
        replicas = catalogue.replicas(files, candidate.vo)
    except CatalogueUnavailableError as away:
        return Hold(reason=f"the replica catalogue does not answer: {away}")
    if missing := [file for file in files if not replicas.get(file)]:
        return Failed(reason=f"Input Data Not Available: {_some(missing)}")
    places = frozenset(replicas[file] for file in files)
    if not find_common_sites(context.config, places):
        return Failed(reason="No candidate sites available: no site has all the input data")
    return Done(candidate=replace(candidate, replicas=places))


def _some(files: Sequence[str]) -> str:
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return f"{', '.join(files[:3])}{more}"
