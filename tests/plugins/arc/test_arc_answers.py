"""What follows from the answers of an A-REX, whole ones and others, as a stand-in gives them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest

from examples.servers.certificates import Authority
from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobReport,
    State,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.plugins.arc.arc import Arc
from pilotage.plugins.arc.rest import ArcRest, Credentials

STAMP = "north-12345678"
JOB = BatchJob(stamp=STAMP, script="#!/bin/sh\n", queue="long")
HANDLE = Handle(stamp=STAMP, reference="a1")

Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


def told(*jobs: Mapping[str, object], code: int = 200) -> httpx.Response:
    return httpx.Response(code, json={"job": list(jobs)})


def named(reference: str = "a1", stamp: str = STAMP) -> httpx.Response:
    document = {"ComputingActivity": {"Name": stamp}}
    return told({"status-code": "200", "id": reference, "info_document": document}, code=201)


def ce(**answers: Answer) -> Arc:
    """A CE that answers `list`, `new`, `info`, … and, with `put`, `failed`, `exit`, for files and notes."""

    def answer(request: httpx.Request) -> httpx.Response:
        action = request.url.params.get("action")
        last = request.url.path.rpartition("/")[2]
        name = action or ("put" if request.method == "PUT" else "list" if last == "jobs" else last)
        found = answers.get(name, httpx.Response(404))
        if isinstance(found, Exception):
            raise found
        return found(request) if callable(found) else found

    rest = ArcRest("https://ce/arex", Credentials(), connect=lambda _: httpx.MockTransport(answer))
    return Arc(rest=rest)


def status(**answers: Answer) -> JobReport:
    return ce(**answers).status([HANDLE])[STAMP]


def test_no_job_is_an_answer_without_content() -> None:
    assert status(list=httpx.Response(200)).state is State.MISSING


@pytest.mark.parametrize(
    "listing", [{"id": "a1", "state": "SUBMITTING"}, [{"id": "a1", "state": "SUBMITTING"}]]
)
def test_one_job_may_be_told_without_a_list(listing: object) -> None:
    report = status(list=httpx.Response(200, json={"job": listing}), info=named())
    assert report == JobReport(state=State.WAITING, reference="a1", message="SUBMITTING")


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("QUEUING", State.WAITING),
        ("RUNNING", State.RUNNING),
        ("EXITINGLRMS", State.RUNNING),
        ("PREPARING", State.WAITING),  # as of the last look, which was before it was handed on
        ("FINISHED", State.RUNNING),  # the listing knows better
    ],
)
def test_what_the_batch_system_said_decides_whether_a_job_waits_there(word: str, state: State) -> None:
    listing = told({"id": "a1", "state": "RUNNING"})
    later = told({"id": "a1", "status-code": "200", "state": word}, code=201)
    assert status(list=listing, info=named(), status=later).state is state


def test_a_word_that_is_new_is_on_its_way() -> None:
    listing = told({"id": "a1", "state": "PONDERING"})
    later = told({"id": "a1", "status-code": "200", "state": "PONDERING"}, code=201)
    assert status(list=listing, info=named(), status=later).state is State.RUNNING


@pytest.mark.parametrize(
    ("word", "why", "mark", "state", "exit_code"),
    [
        ("FAILED", "Job finished with wrong exit code", b"7\n", State.FAILED, 7),
        ("FAILED", "Job is canceled by external request", b"143\n", State.KILLED, 143),
        ("KILLED", "", b"", State.KILLED, None),
        ("FAILED", "walltime limit exceeded", b"", State.FAILED, None),
        ("FAILED", "Failed to upload output files", b"0\n", State.DONE, 0),
    ],
)
def test_an_end_is_told_by_the_notes_and_by_the_mark_of_the_script(
    word: str, why: str, mark: bytes, state: State, exit_code: int | None
) -> None:
    def file(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=mark)

    listing = told({"id": "a1", "state": word})
    note = httpx.Response(200, text=why)
    report = status(list=listing, info=named(), failed=note, exit=file)
    assert report == JobReport(state=state, reference="a1", exit_code=exit_code, message=why or word)


def test_a_job_too_young_for_its_description_is_known_by_its_notes() -> None:
    listing = told({"id": "a1", "state": "ACCEPTING"})
    unnamed = told({"id": "a1", "status-code": "200", "info_document": ""}, code=201)
    note = httpx.Response(200, text=f"globalid=a1\njobname={STAMP}\nqueue=long\n")
    assert ce(list=listing, info=unnamed, local=note).find([STAMP]) == {STAMP: ("a1",)}


def test_a_job_that_a_listing_misses_is_asked_for_by_itself() -> None:
    def listing(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200) if "state" in request.url.params else told({"id": "a1"})

    later = told({"id": "a1", "status-code": "200", "state": "SUBMITTING"}, code=201)
    system = ce(list=listing, info=named(), status=later)
    assert system.find([STAMP]) == {STAMP: ("a1",)}
    assert system.status([HANDLE])[STAMP].state is State.WAITING


def test_a_job_known_before_is_missing_only_if_it_is_not_there_by_itself_either() -> None:
    listings = iter([told({"id": "a1", "state": "ACCEPTING"}), told({"id": "a1"})])
    later = iter(
        [
            told({"id": "a1", "status-code": "200", "state": "PREPARING"}, code=201),
            told({"id": "a1", "status-code": "404", "state": "None"}, code=201),
        ]
    )
    system = ce(
        list=lambda _: next(listings, httpx.Response(200)), info=named(), status=lambda _: next(later)
    )
    states = [system.status([HANDLE])[STAMP].state for _ in range(3)]
    assert states == [State.WAITING, State.WAITING, State.MISSING]


def test_a_wiped_job_is_there_no_more() -> None:
    later = told({"id": "a1", "status-code": "200", "state": "WIPED"}, code=201)
    listing = told({"id": "a1", "state": "WIPED"})
    assert status(list=listing, status=later).state is State.MISSING


def test_two_jobs_of_one_stamp_are_both_told() -> None:
    listing = told({"id": "a1", "state": "ACCEPTING"}, {"id": "a2", "state": "ACCEPTING"})

    def info(request: httpx.Request) -> httpx.Response:
        asked = [each["id"] for each in json.loads(request.content)["job"]]
        return told(*(json.loads(named(each).content)["job"][0] for each in asked), code=201)

    assert set(ce(list=listing, info=info).find([STAMP])[STAMP]) == {"a1", "a2"}


@pytest.mark.parametrize(
    "listing",
    [
        httpx.Response(200, content=b'{"job":[{"id":"a1","state":"RUN'),
        httpx.Response(200, json=["a1"]),
        httpx.Response(200, json={"job": ["a1"]}),
        httpx.Response(403, text="User can't be assigned configuration"),
        httpx.Response(503),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("too late"),
        httpx.RemoteProtocolError("cut off"),
    ],
)
def test_nothing_follows_from_an_answer_that_is_none(listing: Answer) -> None:
    with pytest.raises(BatchSystemAway):
        status(list=listing)


def test_an_answer_for_some_of_the_jobs_is_none() -> None:
    listing = told({"id": "a1", "state": "RUNNING"}, {"id": "a2", "state": "RUNNING"})
    with pytest.raises(BatchSystemAway, match="info of 2 jobs is answered for all but 1, such as a2"):
        status(list=listing, info=named("a1"))


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (
            told({"status-code": "500", "reason": "Requested queue long is not allowed"}, code=201),
            SubmissionRefused,
        ),
        (
            told({"status-code": "500", "reason": "Failed to store job description"}, code=201),
            BatchSystemAway,
        ),
        (httpx.Response(403), BatchSystemAway),
        (httpx.ConnectError("refused"), BatchSystemAway),
        (httpx.Response(502), SubmissionUncertain),
        (httpx.ReadTimeout("too late"), SubmissionUncertain),
        (httpx.Response(201, content=b'{"job":{"status-co'), SubmissionUncertain),
        (httpx.Response(201), SubmissionUncertain),
    ],
)
def test_a_submission_is_refused_away_or_uncertain(new: Answer, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        ce(new=new).submit(JOB)
    assert raised.type is error or error is BatchSystemAway


def test_a_job_without_its_files_is_uncertain() -> None:
    taken = told({"status-code": "201", "id": "a1", "state": "ACCEPTING"}, code=201)
    with pytest.raises(SubmissionUncertain, match="its files may be missing"):
        ce(new=taken, put=httpx.Response(500)).submit(JOB)


def test_a_kill_that_is_not_taken_is_not_done() -> None:
    listing = told({"id": "a1", "state": "RUNNING"})
    refused = told({"id": "a1", "status-code": "505", "reason": "Job could not be canceled"}, code=201)
    with pytest.raises(BatchSystemAway, match="could not be canceled"):
        ce(list=listing, info=named(), kill=refused).kill([HANDLE])


def test_capacity_is_that_of_queues_that_take_jobs() -> None:
    shares = [
        {"MappingQueue": "long", "ServingState": "production", "FreeSlots": "5", "RunningJobs": "3"},
        {"MappingQueue": "old", "ServingState": "draining", "FreeSlots": "5", "WaitingJobs": "2"},
    ]
    service = {"ComputingManager": {"TotalSlots": "8"}, "ComputingShare": shares}
    document = {"Domains": {"AdminDomain": {"Services": {"ComputingService": service}}}}
    assert ce(info=httpx.Response(200, json=document)).capacity() == {
        "long": Capacity(cores=8, free_cores=5, waiting=0, running=3),
        "old": Capacity(cores=0, free_cores=0, waiting=2, running=0),
    }


OWN = {"Name": "grid", "MappingQueue": "grid", "ServingState": "production", "FreeSlots": "5"}
OF_VO = {"MappingQueue": "grid", "ServingState": "production", "FreeSlots": "5"}


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        # The queue's own share has the jobs of all, those of VOs are parts of it.
        (
            [
                {**OWN, "WaitingJobs": "500", "RunningJobs": "12"},
                {**OF_VO, "Name": "grid_atlas", "WaitingJobs": "0", "RunningJobs": "2"},
            ],
            Capacity(cores=8, free_cores=5, waiting=500, running=12),
        ),
        # Without it they are added up.
        (
            [
                {**OF_VO, "Name": "grid_atlas", "WaitingJobs": "300", "RunningJobs": "2"},
                {**OF_VO, "Name": "grid_cms", "WaitingJobs": "200", "FreeSlots": "3", "RunningJobs": "10"},
            ],
            Capacity(cores=8, free_cores=5, waiting=500, running=12),
        ),
        # A VO whose share is closed does not close the queue for the others.
        (
            [
                {**OF_VO, "Name": "grid_atlas", "WaitingJobs": "4"},
                {**OF_VO, "Name": "grid_cms", "ServingState": "closed", "FreeSlots": "0"},
            ],
            Capacity(cores=8, free_cores=5, waiting=4, running=0),
        ),
        (
            [{**OF_VO, "Name": each, "ServingState": "draining"} for each in ("grid_atlas", "grid_cms")],
            Capacity(cores=0, free_cores=0, waiting=0, running=0),
        ),
    ],
)
def test_shares_of_vos_are_one_queue(shares: list[dict[str, str]], expected: Capacity) -> None:
    service = {"ComputingManager": {"TotalSlots": "8"}, "ComputingShare": shares}
    document = {"Domains": {"AdminDomain": {"Services": {"ComputingService": service}}}}
    assert ce(info=httpx.Response(200, json=document)).capacity() == {"grid": expected}


def test_a_ce_that_does_not_know_its_queues_yet_has_no_capacity() -> None:
    with pytest.raises(BatchSystemAway, match="does not state what it has"):
        ce(info=httpx.Response(200, json={"Domains": ""})).capacity()


def test_a_directory_of_authorities_is_believed_that_nobody_indexed(tmp_path: Path) -> None:
    Authority(tmp_path)
    assert Credentials(authorities=tmp_path).context().cert_store_stats()["x509_ca"] == 1


def test_authorities_that_cannot_be_read_are_the_reason_why_a_ce_is_away(tmp_path: Path) -> None:
    rest = ArcRest("https://ce/arex", Credentials(authorities=tmp_path))
    with pytest.raises(BatchSystemAway, match="contains no CA certificate"):
        rest.jobs()


@pytest.mark.parametrize("size", ["", "-5", "9" * 5000])
def test_a_size_that_is_none_is_that_of_no_file(size: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=[(b"Content-Length", size.encode())])

    rest = ArcRest("https://ce/arex", Credentials(), connect=lambda _: httpx.MockTransport(answer))
    assert rest.read("a1", "out", last=10) == b""
