"""What holds grid jobs up in one round: each trouble is its own job's; a host that hangs is asked once."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.manager.errors import StateUnusable, UnfitJob
from pilotage.fabric.manager.records import Entry, Key
from pilotage.fabric.pilot.transport import Away, Refused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """Those of one round."""

    problems: dict[Key, str] = field(default_factory=dict)
    _hanging: dict[str, str] = field(default_factory=dict)  #: by batch system, what it did not answer

    def attempt(self, act: Callable[[], None], system: str, *entries: Entry) -> None:
        """Do something for grid jobs, unless their batch system hangs; the next round tries what failed.

        Args:
            act: What is to be done.
            system: Name of the batch system.
            entries: The grid jobs that are held up if it fails.

        Raises:
            StateUnusable: The rest has to wait.
        """
        if system in self._hanging:
            self._note(self._hanging[system], entries)
            return
        try:
            act()
        except NoAnswer as error:
            self._hanging[system] = str(error)
            self._note(str(error), entries)
        except (BatchSystemAway, Away, Refused, UnfitJob, OSError) as error:
            self._note(str(error), entries)
        except StateUnusable:
            raise
        except Exception as error:  # a bug of ours must not hold up the others
            log.exception("grid jobs %s: the round broke", ", ".join(each.taken.name for each in entries))
            self._note(f"a fault of the gateway: {error!r:.300}", entries)

    def _note(self, problem: str, entries: tuple[Entry, ...]) -> None:
        self.problems.update({entry.key: problem for entry in entries})
