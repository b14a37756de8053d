"""The pilot's main function: from the command line to the exit status."""

from __future__ import annotations

import json
import logging
import random
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Callable, TypeVar

from pilotage.fabric.pilot import arguments, offer
from pilotage.fabric.pilot.allotment import SlotRoom
from pilotage.fabric.pilot.attempt import AttemptContext
from pilotage.fabric.pilot.errors import (
    AWAY,
    FINE,
    HOST,
    REFUSED,
    SECRET_ALREADY_USED,
    USAGE,
    Ending,
    HostTrouble,
    NodeExcluded,
    NotPossibleHere,
)
from pilotage.fabric.pilot.job_agent import JobAgent, PilotControl
from pilotage.fabric.pilot.node import cgroup, discovery, linux
from pilotage.fabric.pilot.node.cgroup import Delegation
from pilotage.fabric.pilot.node.db12 import NEVER, START
from pilotage.fabric.pilot.offer import Offer
from pilotage.fabric.pilot.payload import isolation
from pilotage.fabric.pilot.payload.monitor import SlotMemory
from pilotage.fabric.pilot.payload.preparation import Preparer
from pilotage.fabric.pilot.service import credentials, heartbeat, service_client
from pilotage.fabric.pilot.service import transport as service_transport
from pilotage.fabric.pilot.service.credentials import Credential, TokenRenewal
from pilotage.fabric.pilot.service.service_client import Service
from pilotage.fabric.pilot.service.transport import Away, Refused, TokenNotAccepted, Transport
from pilotage.fabric.pilot.settings import PilotSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The service's error code when another process has exchanged the secret.
_ALREADY_USED = "secret_used"
#: In the log and the reason of the end of a pilot.
NOT_ISOLATED = "jobs are not isolated on this host"
#: Variable with the name of its node, where the name of the host is that of a pod or container.
_NODE = "PILOTAGE_NODE"
#: Why it got no job, in a word: this with the kind of isolation that its host does not allow.
NO_ISOLATION = "no_isolation_"
_FORMAT = "%(asctime)s %(levelname)s %(message)s"
#: Lines and characters of the log that are kept for the service, and seconds between two sendings.
_LOG_LINES, _LOG_CHARACTERS, _LOG_EVERY = 400, 16_000, 300.0


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a pilot; return its exit status."""
    linux.keep_private()
    parser = arguments.parser()
    options = parser.parse_args(words)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if options.verbose else logging.INFO,
        format=_FORMAT,
    )
    tail = LogTail()
    logging.getLogger().addHandler(tail)
    try:
        settings = arguments.read_settings(options, environment)
        tls = service_transport.tls_context(settings.authorities)
        proxy = service_transport.choose_proxy(settings.url, settings.proxy, environment)
        transport = Transport(settings.url, "", context=tls, proxy=proxy)
        # Last: removes the secret's file, which would be lost if something else failed before.
        if options.secret_file is None:
            credential = credentials.read_token(options.token_file, environment)
        else:
            credential = credentials.read_secret(options.secret_file, stamp=options.stamp)
        transport.use_token(credential.text)
    except (ValueError, OSError, credentials.NoToken) as error:
        parser.print_usage(sys.stderr)
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return USAGE
    linux.wipe_variable(credentials.VARIABLE)
    linux.adopt_orphans()
    pilot = Pilot(settings, Service(transport), environment, credential, tail)
    pilot.control.listen()
    ending = pilot.run()
    if options.json:
        summary = {"reason": ending.reason, "exit_status": ending.exit_status, "jobs": pilot.jobs}
        sys.stdout.write(json.dumps(summary) + "\n")
    return ending.exit_status


class LogTail(logging.Handler):
    """The last part of the log of this process, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT))
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self.count = 0  #: lines so far

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self._lines.append(self.format(record))
        self.count += 1

    def text(self) -> str:
        """The last lines."""
        return "\n".join(self._lines)[-_LOG_CHARACTERS:].replace("\0", "")


class LogSending:
    """Sends the end of the log to the service, where it can be read while the pilot runs (`periodically`)."""

    def __init__(self, service: Service, stamp: str, tail: LogTail) -> None:
        self._service, self._stamp, self._tail = service, stamp, tail
        self._sent = 0

    def periodically(self) -> AbstractContextManager[None]:
        """Send it while in a `with` block, as often as it changes but not too often."""
        return heartbeat.call_periodically(self._turn, name="log", first=_LOG_EVERY)

    def send(self) -> None:
        """Send it if it has changed."""
        count = self._tail.count
        if count != self._sent:
            with suppress(Away, Refused, OSError):  # it is for people only
                self._service.keep_log(self._stamp, self._tail.text())
                self._sent = count

    def _turn(self) -> float:
        self.send()
        return _LOG_EVERY * random.uniform(0.9, 1.2)


class Pilot:
    """One pilot: exchanges its secret, makes its offer, runs jobs, and reports its end."""

    def __init__(
        self,
        settings: PilotSettings,
        service: Service,
        environment: Mapping[str, str],
        credential: Credential,
        tail: LogTail,
    ) -> None:
        self._began = time.monotonic()
        self.control = PilotControl(settings.stop_conditions.drain_file)
        self.jobs: list[dict[str, object]] = []  #: outcome of each job
        self._settings = settings
        self._service = service
        self._environment = environment
        self._credential = credential
        self._tail = tail
        self._claims: Mapping[str, object] = {}  #: claims of the token, once there is one
        #: Why it got no job, in a word: the last reason of the service, or its own.
        self._why_empty: str | None = None
        self._slot = settings.slot
        self._life: float | None = None  #: seconds until the token expires, if it can be renewed

    def run(self) -> Ending:
        """Work until there is a reason to end; return the reason."""
        try:
            self._introduce()
            self._report_node()
            self._isolate()
            self._slot = discovery.complete_slot(
                self._settings.slot,
                self._environment,
                now=time.time(),
                work_dir=self._settings.payload_options.work_dir,
            )
            offered = self._state_power(self._patiently(self._offer))
        except HostTrouble as error:
            ending = Ending(HOST, f"trouble with this host: {error}", host_trouble=True)
        except NodeExcluded as error:
            ending = Ending(HOST, f"this host is {error}")
        except Refused as error:
            is_used = error.code == _ALREADY_USED
            ending = Ending(
                SECRET_ALREADY_USED if is_used else REFUSED,
                f"{'another process is this pilot' if is_used else 'the service rejects it'}: {error}",
            )
        except Away as error:
            told = self.control.stop.is_set()
            ending = Ending(
                FINE if told else AWAY, f"{'stopped' if told else 'the service stays away'}: {error}"
            )
        else:
            ending = self._work(offered)
        log.info("the pilot ends: %s (jobs: %d)", ending.reason, len(self.jobs))
        self._report_end(ending)
        return ending

    def _isolate(self) -> None:
        """Find the isolation that works on this host, before the first request."""
        options = self._settings.payload_options
        try:
            found = isolation.find_working(options.isolation, below=options.work_dir, own=self._environment)
        except NotPossibleHere:
            self._why_empty = f"{NO_ISOLATION}{options.isolation.kind}"
            raise
        if found.missing:
            log.warning("%s: %s", NOT_ISOLATED, found.missing)
        self._settings = replace(self._settings, payload_options=replace(options, isolation=found))

    def _introduce(self) -> None:
        shown, stamp = self._credential.text, self._credential.stamp
        if stamp is None:
            self._claims = credentials.read_claims(shown)
            self._life = credentials.life_left(self._claims, time.time())
            return
        request_id = str(uuid.uuid4())
        token = self._patiently(
            lambda: _call_first(lambda: self._service.exchange_secret(stamp, request_id=request_id))
        )
        self._claims, self._life = credentials.read_claims(token.text), token.life

    def _report_node(self) -> None:
        """Report where this pilot is; NodeExcluded if the pilots before had trouble with this host."""
        stamp = self._claims.get("stamp")
        if not isinstance(stamp, str):
            return
        node = (self._environment.get(_NODE) or socket.gethostname())[:255]
        try:
            why = self._service.report_node(stamp, node, str(uuid.uuid4()))
        except (Away, Refused) as error:  # it is not registered
            log.debug("the node is not recorded: %s", error)
            return
        if why:
            raise NodeExcluded(why)

    def _patiently(self, request: Callable[[], T]) -> T:
        return service_client.retry_while_away(
            request, patience=self._settings.stop_conditions.patience, stop=self.control.stop
        )

    def _offer(self) -> Offer:
        place, job_filters = self._settings.place, self._settings.job_filters

        def ask() -> dict[str, object]:
            return self._service.queue_parameters(place, job_filters.vo)

        parameters = _call_first(ask) if self._credential.stamp is None else ask()
        pools = job_filters.pools or self._service.submit_pools(place)
        return offer.make_offer(place, self._slot, replace(job_filters, pools=pools), parameters)

    def _work(self, offered: Offer) -> Ending:
        settings = self._settings
        request = offered.at(0)
        pools = request.pop("SubmitPool", ())
        shown = {**request, "SubmitPools": len(pools) if isinstance(pools, list) else 0}
        log.info("at %s, offering %s", settings.place, json.dumps(shown))
        whole = offered.whole(self._environment)
        preparer = Preparer(
            service=self._service,
            payload_options=settings.payload_options,
            place=settings.place,
            whole=whole,
            environment=self._environment,
        )
        context = AttemptContext(
            self._service,
            preparer,
            settings.payload_options,
            offered,
            SlotMemory(offered.max_ram),
            self.control.stop,
            _take_delegated(),
        )
        renewing = TokenRenewal(self._service, life=self._life)
        agent = JobAgent(
            context,
            SlotRoom(whole),
            settings.stop_conditions,
            self.control,
            renewing.refusal,
            began=self._began,
            benchmark=None if offered.states_db12 or settings.slot.db12 == NEVER else self._run_benchmark,
        )
        try:
            with renewing.periodically(), self._send_log():
                return agent.run()
        finally:
            self.jobs = [vars(outcome) for outcome in agent.outcomes]
            self._why_empty = agent.why_empty

    def _state_power(self, offered: Offer) -> Offer:
        """State the DB12 power of a core if nobody does: as a pilot has measured it on this node."""
        when = self._settings.slot.db12
        if offered.states_db12 or when == NEVER:
            return offered
        power = discovery.read_db12(self._slot, time.time())
        if power is None and when == START:
            power = self._run_benchmark(self.control.stop.is_set)
        return offered if power is None else offered.with_db12(power)

    def _run_benchmark(self, is_stopped: Callable[[], bool]) -> float | None:
        return discovery.measure_db12(self._slot, is_stopped, time.time())

    def _send_log(self) -> AbstractContextManager[None]:
        stamp = self._claims.get("stamp")
        if not isinstance(stamp, str):
            return nullcontext()
        return LogSending(self._service, stamp, self._tail).periodically()

    def _report_end(self, ending: Ending) -> None:
        """Report the end to the service, if the pilot has a stamp; else its leases expire."""
        stamp = self._claims.get("stamp")
        if not isinstance(stamp, str) or ending.exit_status == AWAY:
            return
        status = "Done" if ending.exit_status == FINE else "Failed"
        missing = self._settings.payload_options.isolation.missing
        try:
            self._service.report_pilot(
                stamp,
                status=status,
                reason=f"{ending.reason}; {NOT_ISOLATED}: {missing}" if missing else ending.reason,
                empty_reason=self._why_empty,
                host_trouble=ending.host_trouble,
            )
        except Away as error:
            log.info("could not report the end of the pilot: %s", error)
        except Refused as error:  # it is not registered, or is no pilot of this token
            log.debug("the end of the pilot is not recorded: %s", error)
        LogSending(self._service, stamp, self._tail).send()


def _take_delegated() -> Delegation | None:
    """The cgroup in which the memory of payloads is limited; None: it is watched."""
    try:
        delegation = cgroup.take_delegated()
    except cgroup.NotDelegated as error:
        log.info("memory of jobs is watched: %s", error)
        return None
    log.info("memory of jobs is limited in %s", delegation.top)
    return delegation


def _call_first(request: Callable[[], T]) -> T:
    """Make the first request with a token or a secret: if it is not accepted now (any 401), it is refused."""
    try:
        return request()
    except TokenNotAccepted as error:
        raise error.as_refusal() from None
