"""InputData: the sites that have all files of a job."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cs_config.tree.configuration import Configuration
from optimizers.chain.chain import ChainContext, Done, Failed, Hold, JobContext, Outcome
from optimizers.steps.replica_catalogue import CatalogueUnavailableError, sites_of_storage
from requirements.values import fold


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
    sites = _common_sites(files, replicas, context.config)
    if not sites:
        return Failed(reason="No candidate sites available: no site has all the input data")
    return Done(candidate=replace(candidate, data_sites=sites))


def _common_sites(
    files: Sequence[str], replicas: Mapping[str, frozenset[str]], config: Configuration
) -> frozenset[str]:
    sites_of = sites_of_storage(config)
    by_file = (
        frozenset(site for place in replicas[file] for site in sites_of.get(fold(place), frozenset({place})))
        for file in files
    )
    return frozenset.intersection(*by_file)


def _some(files: Sequence[str]) -> str:
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return f"{', '.join(files[:3])}{more}"
