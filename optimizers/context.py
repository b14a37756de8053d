"""What the steps of a chain may ask besides the job itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from cs_config.configuration import Configuration
from cs_config.operations import Operations, operations
from optimizers import catalogue, eligibility
from optimizers.catalogue import CatalogueOpener, ReplicaCatalogue, open_catalogue
from optimizers.eligibility import Eligibility


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One version of the configuration at one time, the same for all jobs of a batch."""

    config: Configuration
    now: datetime
    eligibility: Eligibility
    catalogues: Mapping[str, CatalogueOpener]  #: plug-ins by name

    def operations(self, vo: str) -> Operations:
        """The options that hold for a VO."""
        return operations(self.config, vo)

    def catalogue(self, vo: str) -> ReplicaCatalogue | None:
        """Where the VO's replicas are written down; None: nowhere.

        Raises:
            CatalogueUnavailableError: It cannot be opened now.
        """
        setting = self.operations(vo).job_scheduling.input_data_catalogue
        return open_catalogue(setting, self.catalogues) if setting else None


def context_of(config: Configuration, now: datetime) -> Context:
    """What there is to ask at a time."""
    config = config.at(now)
    return Context(
        config=config,
        now=now,
        eligibility=eligibility.of_configuration(config),
        catalogues=catalogue.installed(),
    )
