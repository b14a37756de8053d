"""Who has which share now: as configured, corrected by what was used of late."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from agents.use_history import UseHistory
from cs_config import registry
from cs_config.configuration import Configuration
from cs_config.groups import Group
from cs_config.operations import operations
from cs_config.options import ShareCorrection
from taskqueue import share_corrections, shares
from taskqueue.share_corrections import Slice
from taskqueue.shares import Demand, Entity


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHolders:
    """The groups and owners of one VO."""

    config: Configuration
    vo: str
    history: UseHistory

    def weights(self, conn: Connection, demands: Sequence[Demand], *, now: datetime) -> Mapping[int, float]:
        """The weights of those of the VO's task queues that have jobs."""
        groups = self._groups(demands)
        of_groups = self._corrected(conn, shares.of_groups(demands, groups), group=None, now=now)
        of_entities = shares.of_entities(demands, groups, of_groups)
        for name in {each.owner_group for each in groups}:
            due = {who: share for who, share in of_entities.items() if who.owner_group == name}
            of_entities |= self._corrected(conn, due, group=name, now=now)
        return shares.weights(demands, groups, of_entities)

    def _groups(self, demands: Sequence[Demand]) -> Mapping[Entity, Group]:
        names = {each.owner_group for each in demands}
        return {Entity(self.vo, name): registry.group(self.config, name, self.vo) for name in names}

    def _corrected(
        self, conn: Connection, due: Mapping[Entity, float], *, group: str | None, now: datetime
    ) -> Mapping[Entity, float]:
        """What owners of the group have after all corrections; None: the groups."""
        for each in operations(self.config, self.vo).job_scheduling.corrections:
            if each.group == group:
                due = share_corrections.corrected(
                    due, self._slices(conn, each, now), max_correction=each.max_global_correction
                )
        return due

    def _slices(self, conn: Connection, correction: ShareCorrection, now: datetime) -> list[Slice[Entity]]:
        return [
            Slice(
                used=self.history.used(
                    conn,
                    self.vo,
                    span=timedelta(seconds=each.time_span),
                    measure=correction.measure,
                    now=now,
                ),
                weight=each.weight,
                max_correction=each.max_correction,
            )
            for each in correction.slices
        ]
