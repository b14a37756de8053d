"""The first steps: JobPath chooses the others, JobSanity checks the job again, InputData finds its data.

JobSanity repeats the checks of the submission, as the configuration may have changed since.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cs_config.tree.configuration import Configuration
from optimizers.chain.chain import ChainContext, Done, Failed, Hold, JobContext, Outcome, cacheable
from optimizers.steps.replica_catalogue import CatalogueUnavailableError, sites_of_storage
from requirements.values import fold

#: JobSanity comes before any other check; only JobScheduling sets the requirement class of a job.
_FIRST, _LAST = "JobSanity", "JobScheduling"
#: Sets the pool: without it a job with requirements would run anywhere.
_POOL = "Requirements"


@cacheable
def job_path(candidate: JobContext, context: ChainContext) -> Outcome:
    """Set the path: the job's own `JobPath`, else the configured one; InputData only with input data.

    JobSanity, Requirements and JobScheduling are part of every path, whether they are named or not.

    Source: DIRAC's JobPath optimizer.
    """
    named = candidate.description.job_path or context.operations(candidate.vo).job_path.chain
    unasked = {"JobPath", _FIRST, _LAST} | (set() if candidate.description.input_data else {"InputData"})
    asked = [step for step in named if step not in unasked]
    path = (_FIRST, *asked, *([] if _POOL in asked else [_POOL]), _LAST)
    return Done(candidate=replace(candidate, path=path))


@cacheable
def job_sanity(candidate: JobContext, context: ChainContext) -> Outcome:  # noqa: ARG001, the signature of all steps
    """Fail jobs that can never run: their description is invalid now, or their sandbox is gone.

    A job that only the configured defaults make invalid waits for another configuration.
    """
    if candidate.config_fault is not None:
        return Hold(reason=f"the configured defaults contradict the description: {candidate.config_fault}")
    if candidate.problems:
        return Failed(reason="; ".join(str(problem) for problem in candidate.problems))
    if candidate.sandbox_gone:
        return Failed(reason="its input sandbox is not stored any more")
    return Done(candidate=candidate)


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
