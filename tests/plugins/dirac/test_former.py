"""Passing on to the former services, which answer with anything here."""

import asyncio
import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from sqlalchemy.exc import OperationalError

from cs_config.options import bounds
from examples.servers.certificates import Authority
from pilotage.plugins.dirac import former, jencode, routing
from pilotage.plugins.dirac.former import (
    FormerAway,
    FormerServices,
    OutcomeUnknown,
    UnknownThere,
    read_url,
    split_ids,
)
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import Peer
from pilotage.service.http_errors import NotAuthenticated
from requirements.errors import InvalidRequest, NotAllowed

FIRST = 1000
URLS = [f"https://dirac.test:8443{path}" for path in sorted(routing.SHARED)]
SERVICES = FormerServices(URLS, first_job_id=FIRST, make_context=ssl.create_default_context)
PEER = Peer(
    dn="/DC=test/CN=ada",
    user="ada",
    group="lhcb_user",
    vos=frozenset({"lhcb"}),
    properties=frozenset({"NormalUser"}),
)


@pytest.mark.parametrize(
    ("given", "here", "there"),
    [
        (5, None, 5),
        ("5", None, "5"),
        (1000, 1000, None),
        ([5, "1000", 6], ["1000"], [5, 6]),
        ([5], None, [5]),
        ([1000], [1000], None),
        ([], [], None),
        ({"5": ["a", 1], "1000": ["a", 2]}, {"1000": ["a", 2]}, {"5": ["a", 1]}),
        (None, None, None),
        (True, True, None),
        (0, 0, None),
        (-5, -5, None),
        ("5" * 5000, "5" * 5000, None),
        ([[5]], [[5]], None),
        ({"a": 1}, {"a": 1}, None),
    ],
)
def test_ids_are_split_at_the_first_of_ours(given: object, here: object, there: object):
    assert split_ids(given, FIRST) == (here, there)


def test_urls_are_those_of_diracs_configuration():
    assert str(read_url("dips://a.test:9170/WorkloadManagement/Matcher/")) == (
        "dips://a.test:9170/WorkloadManagement/Matcher"
    )
    for wrong in ("", "a", "https://a.test/x", "https://a.test:1", "http://a.test:1/x", "https://a:99999/x"):
        with pytest.raises(InvalidRequest, match="no URL such as"):
            read_url(wrong)


def _answer(given: Result | Exception) -> Callable[[Sequence[object]], Any]:
    async def answer(_: Sequence[object]) -> Result:
        if isinstance(given, Exception):
            raise given
        return given

    return answer


def _route(
    path: str,
    method: str,
    here: Result | Exception,
    there: Result | Exception,
    *arguments: object,
    has_moved: bool = True,
) -> Result:
    answering = routing.answer_call(
        SERVICES,
        f"/WorkloadManagement/{path}",
        method,
        arguments,
        here=_answer(here),
        there=_answer(there),
        has_moved=has_moved,
    )
    return asyncio.run(answering)


AWAY = FormerAway("away")
DATABASE_AWAY = OperationalError("", {}, Exception())
NONE = jencode.error("nothing", jencode.NO_MATCH)


def test_a_pilot_gets_a_job_from_where_there_is_one():
    here, there = jencode.ok({"JobID": 2000}), jencode.ok({"JobID": 5})
    assert _route("Matcher", "requestJob", here, there, {}) == here
    for nothing in (NONE, NotAllowed("no resource of ours")):
        assert _route("Matcher", "requestJob", nothing, there, {}) == there
    assert _route("Matcher", "requestJob", NONE, AWAY, {}) == NONE
    with pytest.raises(NotAllowed):
        _route("Matcher", "requestJob", NotAllowed("no"), AWAY, {})


def test_lists_lack_no_part_unless_the_vo_is_all_there():
    here, there = jencode.ok(["2000"]), jencode.ok(["5", "70"])
    assert _route("JobMonitoring", "getJobs", here, there)["Value"] == ["5", "70", "2000"]
    refused = jencode.error("unknown attribute")
    assert _route("JobMonitoring", "getJobs", refused, there, has_moved=False) == there
    assert _route("JobMonitoring", "getJobs", refused, there) == refused
    with pytest.raises(FormerAway):
        _route("JobMonitoring", "getJobs", here, AWAY)
    for fault in (NotAllowed("no VO of ours"), DATABASE_AWAY):
        assert _route("JobMonitoring", "getJobs", fault, there, has_moved=False) == there
        with pytest.raises(type(fault)):
            _route("JobMonitoring", "getJobs", fault, there)
    active = _route("Matcher", "getActiveTaskQueues", jencode.ok({"1": 1}), jencode.ok({"1": 2}))
    queues = _route("Matcher", "getMatchingTaskQueues", jencode.ok({"1": 1}), jencode.ok({"1": 2}), {})
    assert active == queues
    assert queues["Value"] == {"1": 2, "1001": 1}


def test_directors_get_the_task_queues_of_the_part_that_answers():
    here, there = jencode.ok({"1": 1}), jencode.ok({"1": 2})
    for fault in (AWAY, OutcomeUnknown("no"), NotAuthenticated("no"), UnknownThere("no")):
        assert _route("Matcher", "getMatchingTaskQueues", here, fault, {}) == here
    assert _route("Matcher", "getMatchingTaskQueues", here, jencode.error("no"), {}) == here
    for error in (NotAllowed("no"), DATABASE_AWAY, jencode.error("no")):
        assert _route("Matcher", "getMatchingTaskQueues", error, there, {}) == there


def test_changes_of_both_report_the_part_that_failed():
    ids = [5, 2000]
    there = jencode.ok([], requireProxyUpload=True, NonauthorizedJobIDs=[5])
    assert _route("JobManager", "killJob", jencode.ok([2000]), there, ids) == jencode.ok(
        [2000], requireProxyUpload=True, NonauthorizedJobIDs=[5]
    )
    assert _route("JobManager", "killJob", jencode.ok([2000]), AWAY, ids)["FailedJobIDs"] == [5]
    both = _route("JobManager", "killJob", jencode.error("no", InvalidJobIDs=[2000]), AWAY, ids)
    assert (both["OK"], both["InvalidJobIDs"], both["FailedJobIDs"]) == (False, [2000], [5])


def test_tables_of_both_are_one_and_none_is_partial():
    ours, theirs = jencode.ok({2000: {"Status": "Done"}}), jencode.ok({"5": {"Status": "Failed"}})
    joined = _route("JobMonitoring", "getJobsStatus", ours, theirs, [5, 2000])
    assert joined["Value"] == {"2000": {"Status": "Done"}, "5": {"Status": "Failed"}}
    assert _route("JobMonitoring", "getJobsStatus", ours, AWAY, [5, 2000])["OK"] is False
    each = {"5": ["a", 1], "2000": ["a", 1]}
    assert _route("JobStateUpdate", "setJobsParameter", jencode.ok(), jencode.ok(), each) == jencode.ok()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"12",
        b"x:{}",
        b"-5:{}",
        b"9999999999999999:",
        b"99999999999:",
        b"2:{}",
        b"4:null",
        b'11:{"OK":"yes"}',
        b'11:{"OK":true}',
        b'12:{"OK":false}',
        b'40:{"OK": true, "Value": {"__dCls": "evil"}}',
        b"3:\xff\xff\xff",
    ],
)
def test_whatever_is_sent_back_is_an_error_of_the_former_services(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
):
    async def call() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(sent)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        genuine = asyncio.open_connection
        monkeypatch.setattr(asyncio, "open_connection", lambda host, port, ssl: genuine(host, port))  # noqa: ARG005
        services = FormerServices(
            [f"dips://127.0.0.1:{port}/WorkloadManagement/Matcher"],
            first_job_id=FIRST,
            make_context=ssl.create_default_context,
        )
        with pytest.raises(OutcomeUnknown, match="does not answer as DIRAC does"):
            await services.call("/WorkloadManagement/Matcher", "requestJob", [{}], PEER)
        server.close()
        await server.wait_closed()

    asyncio.run(call())


def test_the_next_url_is_tried_only_if_nothing_was_sent(monkeypatch: pytest.MonkeyPatch):
    tried: list[str] = []

    async def call_https(url: Any, *_: object) -> Result:
        tried.append(url.host)
        if url.host == "a":
            raise former.NotReached
        if url.host == "b":
            raise EOFError
        return jencode.ok(1)

    monkeypatch.setattr(former, "_call_https", call_https)

    def call(*hosts: str) -> Result:
        services = FormerServices(
            [f"https://{host}:1/x" for host in hosts],
            first_job_id=FIRST,
            make_context=ssl.create_default_context,
        )
        return asyncio.run(services.call("/x", "submitJob", [""], PEER))

    assert call("a", "c") == jencode.ok(1)
    with pytest.raises(OutcomeUnknown, match="look before you repeat"):
        call("b", "c")
    assert tried == ["a", "c", "b"]


def _services(*urls: str) -> FormerServices:
    return FormerServices(urls, first_job_id=FIRST, make_context=ssl.create_default_context)


def test_a_url_that_was_dead_is_tried_last_for_a_minute(monkeypatch: pytest.MonkeyPatch):
    tried: list[str] = []

    async def call_https(url: Any, *_: object) -> Result:
        tried.append(url.host)
        if url.host == "a":
            raise former.NotReached
        return jencode.ok(1)

    monkeypatch.setattr(former, "_call_https", call_https)
    services = _services("https://a:1/x", "https://b:1/x")

    def call() -> list[str]:
        tried.clear()
        assert asyncio.run(services.call("/x", "ping", [], PEER)) == jencode.ok(1)
        return list(tried)

    assert call() == ["a", "b"]
    assert call() == ["b"]
    monkeypatch.setattr(bounds, "FORMER_DEAD_SECONDS", 0)
    assert call() == ["a", "b"]


@pytest.mark.parametrize("scheme", ["https", "dips"])
def test_without_a_connection_in_time_the_next_url_is_tried(scheme: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "FORMER_CONNECT_SECONDS", 1.0)

    async def call() -> list[str]:
        seen: list[str] = []

        async def serve(name: str, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(name)
            if name == "second":
                writer.close()
            else:
                await ended.wait()
                writer.close()

        ended = asyncio.Event()
        servers = [
            await asyncio.start_server(partial(serve, name), "127.0.0.1", 0) for name in ("first", "second")
        ]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        services = _services(*(f"{scheme}://127.0.0.1:{port}/x" for port in ports))
        with pytest.raises(FormerAway, match="cannot be reached"):
            await services.call("/x", "ping", [], PEER)
        while len(seen) < len(servers):  # they may see later who has gone by then
            await asyncio.sleep(0.01)
        ended.set()
        for server in servers:
            server.close()
            await server.wait_closed()
        return seen

    assert asyncio.run(call()) == ["first", "second"]


def test_neither_one_sender_nor_one_vo_takes_all_calls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(former, "CALLS", replace(former.CALLS, of_one=2, of_vo=3, of_all=4))

    async def call() -> None:
        ended = asyncio.Event()

        async def wait(*_: object) -> Result:
            await ended.wait()
            return jencode.ok()

        monkeypatch.setattr(former, "_call_https", wait)
        services = _services("https://a:1/x")
        one, other = PEER, replace(PEER, address="other")
        elsewhere = replace(PEER, vos=frozenset({"dune"}), dn="/CN=dan")
        calls: list[asyncio.Task[Result]] = []

        async def begin(peer: Peer) -> None:
            calls.append(asyncio.create_task(services.call("/x", "requestJob", [{}], peer)))
            await asyncio.sleep(0)

        await begin(one)
        await begin(one)
        with pytest.raises(FormerAway, match=r"2 calls of /DC=test/CN=ada at"):
            await services.call("/x", "ping", [], one)
        await begin(other)
        with pytest.raises(FormerAway, match="3 calls of the VO lhcb"):
            await services.call("/x", "ping", [], replace(PEER, dn="/CN=eve"))
        await begin(elsewhere)
        with pytest.raises(FormerAway, match="4 calls of all"):
            await services.call("/x", "ping", [], elsewhere)
        ended.set()
        assert await asyncio.gather(*calls) == [jencode.ok()] * 4
        assert not services._open.under_way

    asyncio.run(call())


def test_a_submission_has_more_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "FORMER_SECONDS", 0.01)

    async def call_https(*_: object) -> Result:
        await asyncio.sleep(0.1)
        return jencode.ok(1)

    monkeypatch.setattr(former, "_call_https", call_https)
    assert asyncio.run(_services("https://a:1/x").call("/x", "submitJob", [""], PEER)) == jencode.ok(1)
    with pytest.raises(OutcomeUnknown, match="in time"):
        asyncio.run(_services("https://a:1/x").call("/x", "killJob", [5], PEER))


def test_the_result_of_a_server_that_does_not_end_tls_comes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("FORMER_CONNECT_SECONDS", "FORMER_SECONDS"):  # less than an end of TLS is waited for
        monkeypatch.setattr(bounds, name, 25.0)
    authority = Authority(tmp_path)
    certificate, key = authority.sign("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def make_context() -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(authority.certificate))
        made.check_hostname = False
        return made

    async def call() -> Result:
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for result in (jencode.ok("Accepted"), jencode.ok(5)):
                await reader.readexactly(int((await reader.readuntil(b":"))[:-1]))
                content = jencode.encode(result)
                writer.write(b"%d:%b" % (len(content), content))
                await writer.drain()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await ended.wait()
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"dips://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        services = FormerServices([url], first_job_id=FIRST, make_context=make_context)
        found = await services.call("/x", "ping", [], PEER)
        ended.set()
        server.close()
        await server.wait_closed()
        return found

    assert asyncio.run(call()) == jencode.ok(5)


def test_of_many_calls_one_reads_the_certificate_in_a_thread_of_the_bounded_pool():
    held: list[int] = []

    async def call() -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()

        def make_context() -> ssl.SSLContext:
            held.append(int(limiter.borrowed_tokens))
            return ssl.create_default_context()

        services = FormerServices([], first_job_id=FIRST, make_context=make_context)
        found = await asyncio.gather(*(services._current_context() for _ in range(20)))
        assert len(set(map(id, found))) == 1

    asyncio.run(call())
    assert held == [1]


def test_answers_may_be_larger_than_forms():
    most = bounds.JSON_VALUES + 100_000
    ids = json.dumps({"OK": True, "Value": [str(number) for number in range(most)]})
    assert len(jencode.decode_result(ids)["Value"]) == most  # type: ignore[arg-type]
    large = f'{{"OK": true, "Value": {2**64}}}'
    assert jencode.decode_result(large)["Value"] == 2**64
    for text in (ids, large):
        with pytest.raises(InvalidRequest):
            jencode.decode(text)
