"""What the page on stability promises: no name of commands, HTTP, configuration and the like goes away."""

from tests.support.documents import stable_names
from tests.support.left_out import needs_every_plugin


@needs_every_plugin
def test_no_stable_name_is_gone() -> None:
    """One that has to go first has the releases in which it is deprecated, and then leaves the list."""
    assert sorted(stable_names.read_listed() - stable_names.find_names()) == []


def test_names_of_every_kind_are_listed() -> None:
    assert {
        "command job list --status",
        "operation jobs_submit POST /api/v1/jobs",
        "operation jobs_list status",
        "setting database_url",
        "option Operations/Limits/RequestsPerSecond",
        "option Registry/Groups/Properties",
        "parameter MaxRAM",
        "director queues/cores",
        "batch system/kind",
        "dirac WorkloadManagement/Matcher.requestJob",
        "python pilotage.Client",
        "plug-in pilotage.batch slurm",
    } <= stable_names.read_listed()
