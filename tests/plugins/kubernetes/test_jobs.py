"""Pilots as Jobs of Kubernetes, with a stand-in for its API server that validates against its schemas."""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path

import httpx
import pytest

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobResources,
    State,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.batch.settings import Connect
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.director import configuration
from pilotage.plugins.batch_check.conformance import CHECKS, Bench
from pilotage.plugins.batch_check.fault_injection import FaultyHttp
from pilotage.plugins.kubernetes import jobs
from pilotage.plugins.kubernetes.api import ApiServer, KubernetesApi
from pilotage.plugins.kubernetes.jobs import Kubernetes, KubernetesSettings
from tests.support.fakes.kubernetes_cluster import TOKEN, FakeCluster
from tests.unit.pilotage.fabric.director.test_configuration import said

STAMP = "north-12345678"
#: Checks of outputs apart from each other, which no API server gives, and of a disk that there is none of.
NOT_THERE = {"round_trip", "full_spool"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    made = FakeCluster(tmp_path)
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> ApiServer:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    return ApiServer(url="https://api.example.org", namespace="pilots", token_file=token, authorities=None)


def open_system(server: ApiServer, connect: Connect) -> Kubernetes:
    queues = {"short": {}, "long": {"priorityClassName": "low", "nodeSelector": {"pool": "long"}}}
    api = KubernetesApi(server, connect=connect)
    return Kubernetes(api=api, image="i@sha256:1", disk=5000, queues=queues)


@pytest.fixture
def system(cluster: FakeCluster, server: ApiServer) -> Kubernetes:
    return open_system(server, lambda _context: httpx.MockTransport(cluster.answer))


def answering(server: ApiServer, answer: Callable[[httpx.Request], httpx.Response]) -> Kubernetes:
    return open_system(server, lambda _context: httpx.MockTransport(answer))


def make_job(script: str = ":", *, queue: str = "short", **more: object) -> BatchJob:
    return BatchJob(stamp=STAMP, script=f"#!/bin/sh\n{script}\n", queue=queue, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("check", sorted(CHECKS.keys() - NOT_THERE))
def test_it_does_what_every_batch_system_must(check: str, cluster: FakeCluster, server: ApiServer) -> None:
    faults = FaultyHttp()
    system = open_system(server, faults.wrap(lambda _context: httpx.MockTransport(cluster.answer)))
    bench = Bench(
        system=system, queue="short", faults=faults, gentle=False, poll=0.05, many=100, patience=300
    )
    try:
        CHECKS[check](bench)
    finally:
        bench.close()
    assert cluster.jobs == {}, "what ended is removed"


def wait(system: Kubernetes, state: State) -> int | None:
    bench = Bench(system=system, queue="short", poll=0.05, patience=300)
    return bench.until(Handle(stamp=STAMP), state).exit_code


def test_a_script_larger_than_an_argument_arrives_whole(system: Kubernetes, tmp_path: Path) -> None:
    noise = "".join(f"# {number * 7919 % 1_000_003:x}\n" for number in range(100_000))
    system.submit(make_job(f"{noise}\necho out; echo err >&2; exit 0"))
    assert wait(system, State.DONE) == 0
    assert system.output(Handle(stamp=STAMP)).stdout == b"out\nerr\n"


def test_a_script_that_no_object_can_hold_is_refused(system: Kubernetes) -> None:
    noise = "".join(f"# {pow(3, number, 2**127 - 1):x}\n" for number in range(60_000))
    with pytest.raises(SubmissionRefused, match="bytes packed, allowed 1000000"):
        system.submit(make_job(noise))


def test_the_job_asks_for_what_the_pilot_needs(system: Kubernetes, cluster: FakeCluster) -> None:
    asked = JobResources(cores=8, memory=16_000, wall_time=3600, gpus=2)
    about = {"VO": "cms"}
    job = make_job(queue="long", resources=asked, avoided_nodes=("n2", "n1"), about=about)
    name = system.submit(job)
    spec = cluster.jobs[name]["spec"]
    pod = spec["template"]["spec"]
    assert spec["backoffLimit"] == 0, "it is never started again"
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "8", "memory": "16000Mi"},
        "limits": {"ephemeral-storage": "40000Mi", "memory": "16000Mi", "nvidia.com/gpu": "2"},
    }
    assert pod["volumes"] == [{"name": "work", "emptyDir": {"sizeLimit": "40000Mi"}}]
    assert (pod["activeDeadlineSeconds"], pod["priorityClassName"]) == (3600, "low")
    assert pod["nodeSelector"] == {"pool": "long"}
    assert cluster.jobs[name]["metadata"]["annotations"] == {
        "pilotage-job/stamp": STAMP,
        "pilotage-job/VO": "cms",
    }
    [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    ]
    [variable] = pod["containers"][0]["env"]
    assert variable == {"name": "PILOTAGE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}


def test_the_same_submission_again_makes_no_second_job(system: Kubernetes, cluster: FakeCluster) -> None:
    assert system.submit(make_job("exec sleep 600")) == system.submit(make_job("exec sleep 600"))
    assert len(cluster.jobs) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"queue": "none"}, "no queue none in the settings, there are long, short"),
        ({"flags": ("--x",)}, "Jobs take none"),
        ({"resources": JobResources(whole_node=True)}, "is to be alone on its node"),
        ({"inputs": {"a": b""}}, "only pilots can run here"),
    ],
)
def test_what_kubernetes_has_no_word_for_is_refused(
    system: Kubernetes, cluster: FakeCluster, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(SubmissionRefused, match=message):
        system.submit(make_job(**wrong))  # type: ignore[arg-type]
    assert cluster.requests == []


def test_a_field_of_a_queue_that_pods_do_not_have_is_found_by_a_dry_run(
    system: Kubernetes, cluster: FakeCluster, server: ApiServer
) -> None:
    system.dry_run(make_job(queue="long"))
    api = KubernetesApi(server, connect=lambda _context: httpx.MockTransport(cluster.answer))
    wrong = Kubernetes(api=api, image="i", disk=5000, queues={"short": {"nodeSelectr": {}}})
    for ask in (wrong.dry_run, wrong.submit):
        with pytest.raises(SubmissionRefused, match="nodeSelectr"):
            ask(make_job())
    assert cluster.jobs == {}


@pytest.mark.parametrize(
    ("code", "reason", "message", "error"),
    [
        (403, "Forbidden", "exceeded quota: pilots", BatchSystemAway),
        (409, "Conflict", "the quota was just changed", BatchSystemAway),
        (401, "Unauthorized", "Unauthorized", BatchSystemAway),
        (429, "TooManyRequests", "try later", BatchSystemAway),
        (400, "BadRequest", "strict decoding error", SubmissionRefused),
        (500, "InternalError", "etcdserver: request timed out", SubmissionUncertain),
        (504, "Timeout", "it may still come", SubmissionUncertain),
    ],
)
def test_an_error_says_whether_the_job_may_be_there(
    server: ApiServer, code: int, reason: str, message: str, error: type[Exception]
) -> None:
    content = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
    system = answering(server, lambda _request: httpx.Response(code, json=content))
    with pytest.raises(error, match=message) as raised:
        system.submit(make_job())
    assert type(raised.value) is error


def test_a_pod_that_waits_says_for_what(server: ApiServer) -> None:
    about = {"name": jobs.make_name(STAMP), "annotations": {"pilotage-job/stamp": STAMP}}
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    state = {"phase": "Pending", "containerStatuses": [{"name": "pilot", "state": {"waiting": waiting}}]}
    items = {
        "jobs": [{"metadata": about, "spec": {}, "status": {"active": 1, "ready": 0}}],
        "pods": [{"metadata": {**about, "name": "p"}, "spec": {}, "status": state}],
    }

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"metadata": {}, "items": items[request.url.path.rpartition("/")[2]]})

    report = answering(server, answer).status([Handle(stamp=STAMP)])[STAMP]
    assert (report.state, report.message) == (State.WAITING, "ImagePullBackOff: no such image")


def list_pages(server: ApiServer, pages: Iterator[list[object]]) -> Sequence[object]:
    def answer(_request: httpx.Request) -> httpx.Response:
        items = next(pages, None)
        metadata = {} if items is None else {"continue": "more"}
        return httpx.Response(200, json={"metadata": metadata, "items": items or []})

    connect = KubernetesApi(server, connect=lambda _context: httpx.MockTransport(answer))
    return connect.list("pods")


def test_a_page_of_a_list_may_be_empty(server: ApiServer) -> None:
    assert list_pages(server, iter([[], [{"a": 1}], [], [{"b": 2}]])) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("page", [[], [{}] * 50_000])
def test_a_list_that_does_not_end_is_no_answer(server: ApiServer, page: list[object]) -> None:
    with pytest.raises(NoAnswer, match="the list of pods does not end"):
        list_pages(server, repeat(page))


def test_a_killed_job_that_waits_for_its_pods_end_is_not_over(server: ApiServer) -> None:
    annotations = {"pilotage-job/stamp": STAMP, "pilotage-job/killed": "true"}
    job = {"metadata": {"name": "j", "annotations": annotations}, "spec": {"suspend": True}}
    active = {"active": 1}

    def answer(request: httpx.Request) -> httpx.Response:
        items = [{**job, "status": active}] if request.url.path.endswith("jobs") else []
        return httpx.Response(200, json={"metadata": {}, "items": items})

    system = answering(server, answer)
    assert system.status([Handle(stamp=STAMP)])[STAMP].state is State.WAITING
    active.clear()
    assert system.status([Handle(stamp=STAMP)])[STAMP].state is State.KILLED


def test_only_what_has_not_started_is_ended_if_asked_so(system: Kubernetes) -> None:
    system.submit(make_job("exec sleep 600"))
    system.kill([Handle(stamp=STAMP, only_waiting=True)])
    assert system.status([Handle(stamp=STAMP)])[STAMP].state is State.RUNNING


def test_a_quota_is_the_capacity_of_all_queues(system: Kubernetes, cluster: FakeCluster) -> None:
    system.submit(make_job("exec sleep 600"))
    known = Capacity(cores=8, free_cores=7, waiting=0, running=1)
    assert system.capacity() == {"short": known, "long": known}
    cluster.cores = None
    assert system.capacity() == {}, "not known"


@pytest.mark.parametrize(("quantity", "cores"), [("4", 4), ("2500m", 2.5), ("1k", 1000), (None, 0)])
def test_quantities_of_cores(quantity: str | None, cores: float) -> None:
    assert jobs.parse_cores(quantity) == cores


def test_a_director_is_told_the_namespace_and_the_image() -> None:
    content = {
        "kind": "kubernetes",
        "api": {"namespace": "pilots"},
        "image": "i@sha256:1",
        "queues": {"q": {}},
    }
    queues = [{"queue": "LCG.A.org/ce1/long", "system": "k8s", "batch_queue": "q"}]
    read = configuration.read_file(said(systems={"k8s": content}, queues=queues), "d.yaml")
    settings = read.systems["k8s"]
    assert isinstance(settings, KubernetesSettings)
    assert settings.api.secret_files == (Path("/var/run/secrets/kubernetes.io/serviceaccount/token"),)
