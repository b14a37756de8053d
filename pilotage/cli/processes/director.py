"""`pilotage director`: submits pilots to batch queues, as many as there is work for.

Builds the parts of a director from its file: clients, batch systems and the script of its pilots.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated

from pilotage.cli import options, output, settings
from pilotage.cli.processes import site_process
from pilotage.cli.processes.token_file import TokenFile
from pilotage.cli.settings import Settings
from pilotage.client import api
from pilotage.client.api import ApiError, ServiceAway, ServiceClient
from pilotage.fabric import bundle, node_script
from pilotage.fabric.batch.settings import Connections
from pilotage.fabric.cycle_summaries import DirectorSummary
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import DirectorFile, InvalidDirector
from pilotage.fabric.director.director import Director
from pilotage.fabric.director.targets import DirectorTargets
from pilotage.fabric.node_script import PilotScript
from pilotage.fabric.pilot.errors import HostTrouble
from pilotage.fabric.pilot.payload import isolation
from requirements.errors import Problem
from requirements.values import fold


def read_director_file(file: Path) -> DirectorFile:
    """The settings in the file of a director."""
    return configuration.read_file(settings.load_yaml(file, InvalidDirector), str(file))


@contextmanager
def open_director(described: DirectorFile) -> Iterator[Director]:
    """The director described by a file; its connections are closed at the end of the block."""
    with ExitStack() as stack:
        clients = {
            fold(vo): stack.enter_context(_client(described, vo, each.token_file))
            for vo, each in described.vos.items()
        }
        systems = described.open_systems(Connections(stack=stack))
        risks = configuration.list_isolation_risks(described)
        shared = configuration.list_shared_accounts(described)
        sites = DirectorTargets(
            queues={each.queue: each.to_target() for each in described.queues},
            brokers=described.brokers,
            systems=systems,
            options=described,
            script=pilot_script(
                (*configuration.isolation_words(described), *described.pilot),  # the file's own come last
                url=described.pilot_url or described.url,
                authorities=described.authorities,
            ),
            service=described.url,
            languages={name: each.languages for name, each in described.systems.items() if each.languages},
        )
        yield Director(
            sites=sites,
            clients=clients,
            every=described.polling_time,
            risks=[*risks, *shared] if risks and shared else [],  # jobs of one VO can take those of another
        )


def _client(described: DirectorFile, vo: str, file: Path) -> ServiceClient:
    tokens = TokenFile(file=file, kept=file.with_name(f"{file.name}.renewed"), invalid=InvalidDirector)
    try:
        return ServiceClient(
            described.url,
            tokens,
            whose=f"vos/{vo}/token_file: {file}",
            authorities=described.authorities,
            proxy=described.proxy,
        )
    except ValueError as error:
        raise InvalidDirector([Problem(path="authorities, proxy", message=str(error))]) from None


def _read_key_ids(described: DirectorFile, url: str) -> frozenset[str]:
    """The ids of the keys that are published at an address; empty: none, though a server answers."""
    with _open_without_token(described, url) as client:
        try:
            return client.read_key_ids()
        except ApiError as error:
            if api.is_passing(error):
                raise
            return frozenset()


def _find_no_api(described: DirectorFile, url: str) -> str:
    """Why there is no service below an address; empty: its API refuses a request without a token."""
    try:
        with _open_without_token(described, url) as client:
            client.whoami()
    except ServiceAway as error:  # it answered a moment ago, but not as a service does
        return f"it has no keys, and no API: {error}"
    except ApiError as error:
        if api.is_passing(error):
            raise
        return "" if (error.status, error.code) == _NO_TOKEN else f"it has no keys, and no API: {error}"
    return "it has no keys, and its API needs no token"


def _open_without_token(described: DirectorFile, url: str) -> ServiceClient:
    return ServiceClient(url, "", authorities=described.authorities, proxy=described.proxy)


def pilot_script(
    words: Sequence[str], *, url: str, authorities: Path | None = None, pythons: Sequence[str] = ()
) -> Callable[[PilotScript], str]:
    """The function that makes the script of a pilot, with the whole program.

    `words` are further arguments of each pilot, `authorities` a file that it gets, and `pythons` what it is
    run by rather than by those that nodes have.
    """
    zipapp = bundle.pilot_bundle()
    trusted = None if authorities is None else authorities.read_text(encoding="ascii")

    def script(pilot: PilotScript) -> str:
        whole = replace(pilot, words=(*pilot.words, *words))
        return node_script.pilot_text(whole, zipapp, url=url, authorities=trusted, pythons=pythons)

    return script


log = logging.getLogger(__name__)

#: Seconds after which the queues of the resource tree are read again though no new version was seen.
_TREE_SECONDS = 600.0
#: Status and code of the service's answer to a request without a token.
_NO_TOKEN = (401, "not_authenticated")
#: Seconds until a director that runs single cycles is overdue.
_ONCE = 86_400.0


@settings.command_with("log_level")
def director(
    chosen: Settings,
    *,
    as_json: bool,
    config: Annotated[
        Path, options.option("FILE", "Director file: service, VOs, batch systems and queues.", "--config")
    ],
    once: site_process.Once = False,
    check: site_process.Check = False,
) -> None:
    """Submit pilots to batch queues, as many as there is work for, and follow them.

    Prints one line for each cycle. It can be killed at any time: a new start continues from there.

    Example: `pilotage director --config director.yaml --once`.
    """
    process = DirectorProcess(described=read_director_file(config), file=config)
    site_process.run(process, chosen, once=once, check=check, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorProcess:
    """A director with its file, which may select queues of the resource tree."""

    described: DirectorFile
    file: Path

    def list_risks(self) -> Collection[str]:
        """What jobs could read or do to each other, and why a host does not isolate its own jobs."""
        tokens, systems = [each.token_file for each in self.described.vos.values()], self.described.systems
        risks = configuration.list_isolation_risks(self.described)
        shared = configuration.list_shared_accounts(self.described)
        shared += configuration.list_open_systems(self.described)
        shared += site_process.list_readable(tokens, systems)
        if risks or all(each.kind != "local" for each in systems.values()):
            return [*risks, *shared]
        missing = _find_missing_isolation()
        return [
            *shared,
            *(
                [f"jobs on this host are not isolated from pilots and each other: {missing}"]
                if missing
                else []
            ),
        ]

    def check(self) -> Mapping[str, str]:
        """Check the queues, what is stated of them, the address for pilots, and the batch systems."""
        with open_director(self.find_tree_queues(needs_all=True)) as made:
            self._require_slots(made, with_unknown=True)
            self._require_own_service()
            return made.check_systems()

    def run_once(self) -> DirectorSummary:
        """Run one cycle."""
        with open_director(self.find_tree_queues()) as made:
            self._require_slots(made)
            made.patience, made.expected = self.described.system_timeout, _ONCE
            summary = made.cycle(datetime.now(UTC))
            made.end()
        return summary

    def run(self, stop: Event, show: Callable[[DirectorSummary], None]) -> None:
        """Run cycles, with another director whenever the queues have changed."""
        found, is_start = self._wait_for_queues(stop), True
        while found is not None:
            with open_director(found) as made:
                self._compare_slots(made, is_start=is_start)
                is_start, changed = False, None
                tree = TreeWatch(process=self, found=found)
                while not stop.is_set() and (changed := tree.find_changed(made.config_version)) is None:
                    site_process.isolate_errors("the cycle", lambda: show(made.cycle(datetime.now(UTC))))
                    stop.wait(self.described.polling_time)
                made.end()
                found = changed

    def find_tree_queues(self, *, needs_all: bool = False) -> DirectorFile:
        """The file with the queues of the resource tree that it selects, as the tree is now.

        `needs_all`: refuse a tree with queues whose parameters are wrong, instead of leaving them out.
        """
        described = self.described
        if described.from_tree is None:
            return described
        found: dict[str, Mapping[str, object]] = {}
        sites = described.from_tree.site or ("",)
        with ExitStack() as stack:
            for vo, each in described.vos.items():
                client = stack.enter_context(_client(described, vo, each.token_file))
                for site in sites:
                    filters = {"vo": vo, **({"site": site} if site else {})}
                    for row in output.read_pages("queues", partial(client.queues, filters)).entries:
                        found.setdefault(row["queue"], row["parameters"])
        return configuration.add_tree_queues(described, found, str(self.file), needs_all=needs_all)

    def _require_slots(self, made: Director, *, with_unknown: bool = False) -> None:
        """Refuse a file that requests for slots what their queues do not have."""
        if wrong := made.check_slots(with_unknown=with_unknown):
            raise InvalidDirector(
                [
                    Problem(
                        path=f"queues/{each.partition(': ')[0]}",
                        message=each.partition(": ")[2],
                        file=str(self.file),
                    )
                    for each in wrong
                ]
            )

    def _require_own_service(self) -> None:
        """Refuse a `pilot_url` where another server answers; one that only nodes reach may be right.

        No token goes there, and the service is known by its keys, of which one stays when they are changed. A
        proxy that passes only the API shows no keys: a service behind it may be the right one.
        """
        address, url = self.described.pilot_url, self.described.url
        if address is None or address == url:
            return
        try:
            theirs = _read_key_ids(self.described, address)
            no_api = "" if theirs else _find_no_api(self.described, address)
        except (ServiceAway, ApiError) as error:
            log.warning(
                "pilot_url: from this host, %s: pilots get jobs only if their nodes reach it: try "
                "`curl %s/api/v1/tokens/me` there, and correct it in %s unless it answers not_authenticated",
                error,
                address.rstrip("/"),
                self.file,
            )
            return
        ours = _read_key_ids(self.described, url)
        if theirs & ours:
            return
        if seen := "its keys are not those of that one" if theirs and ours else no_api:
            message = (
                f"{address} is another server than the service at {url} (url): {seen}; state an address of "
                "that service which nodes reach, or leave it out if they reach url"
            )
            raise InvalidDirector([Problem(path="pilot_url", message=message, file=str(self.file))])
        log.warning(
            "pilot_url: a service answers at %s, but keys cannot be compared with those at %s: make sure "
            "that both are the same service",
            address,
            url,
        )

    def _compare_slots(self, made: Director, *, is_start: bool) -> None:
        """Refuse a file whose slots are larger than their queues; later such queues just get no pilots."""
        try:
            self._require_slots(made)
        except (ServiceAway, ApiError) as error:
            log.warning("the slots cannot be compared with their queues yet: %s", error)
        except InvalidDirector as error:
            if is_start:
                raise
            log.warning("the tree has changed: %s", error)

    def _wait_for_queues(self, stop: Event) -> DirectorFile | None:
        """The file with its queues of the tree, as soon as the service answers; None: we have to stop."""
        while not stop.is_set():
            try:
                return self.find_tree_queues()
            except (ServiceAway, ApiError) as error:
                log.warning("the queues of the tree are not known yet: %s", error)
            stop.wait(self.described.polling_time)
        return None


def _find_missing_isolation() -> str:
    """Why jobs on this host are not isolated; empty: they are."""
    chosen = isolation.choose_isolation(
        isolation.STRONGEST, command=None, image=None, hidden=(), own=os.environ
    )
    try:
        return isolation.find_working(chosen, below=Path(tempfile.gettempdir()), own=os.environ).missing
    except HostTrouble as error:
        return str(error)


@dataclass(slots=True, kw_only=True)
class TreeWatch:
    """Finds out when the part of the tree that a file selects has changed."""

    process: DirectorProcess
    found: DirectorFile  #: the file with its queues, as they were read last
    clock: Callable[[], float] = time.monotonic  #: seconds
    _read_at: float = field(init=False)
    _version: int = 0  #: of the configuration, when it was read last

    def __post_init__(self) -> None:
        self._read_at = self.clock()

    def find_changed(self, version: int) -> DirectorFile | None:
        """The file with its queues if they have changed; `version` is that of the last cycle.

        A lower version is another tree, too: a backup was restored. A read that fails is repeated after the
        next cycle; that the tree contradicts the file stays so until it changes.
        """
        is_due = version != self._version or self.clock() - self._read_at >= _TREE_SECONDS
        if self.process.described.from_tree is None or not is_due:
            return None
        now = self.found
        try:
            now = self.process.find_tree_queues()
        except (ServiceAway, ApiError) as error:
            log.warning("the queues of the tree stay as they were: %s", error)
            return None
        except InvalidDirector as error:
            log.warning("the queues of the tree stay as they were: %s", error)
        self._read_at, self._version = self.clock(), version
        return None if now == self.found else now
