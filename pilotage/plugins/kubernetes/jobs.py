"""Kubernetes as a batch system for pilots: each is a Job of one pod, which is never started again.

The name of a Job follows from its stamp, so a submission that is repeated makes no second one, and one
without an answer is found. A kill suspends the Job, which ends its pod, and leaves a mark: a deleted Job
would show nothing of how it ended. The API server has both outputs of a container in one, as long as the pod.
"""

import base64
import gzip
import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    Capacity,
    Handle,
    JobReport,
    Output,
    State,
    SubmissionRefused,
    SubmissionUncertain,
    Survey,
)
from pilotage.fabric.batch.settings import BatchSystemKind, Connections, SystemSettings
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.batch.work_area import (
    ListedJob,
    StatusMarks,
    choose_job,
    index_by_stamp,
    is_stamp,
    job_report,
)
from pilotage.plugins.kubernetes.api import ApiServer, Item, KubernetesApi, connect

_SELECTOR: Final = "app.kubernetes.io/managed-by=pilotage"
_LABELS: Final = dict([_SELECTOR.split("=")])
_STAMP, _KILLED = "pilotage-job/stamp", "pilotage-job/killed"
#: Seconds after its end in which a Job that nobody forgets is removed by the cluster.
_KEPT: Final = 7 * 86_400
#: Bytes of one argument of a container: the kernel takes 128 KiB; and of the whole script, compressed: of an
#: object etcd takes 1.5 MiB.
_ARGUMENT, _SCRIPT = 100_000, 1_000_000
_LAST: Final = 10_000_000  # bytes of an output
_START: Final = """\
umask 077
printf %s "$@" | base64 -d | gzip -dc >job && chmod 700 job || exit 70
exec ./job
"""


def describe(job: BatchJob, image: str, disk: int, pod: Mapping[str, Any]) -> Item:
    """A job as a Job; `SubmissionRefused` where Kubernetes has no word for what it asks.

    Args:
        job: It.
        image: Of its container.
        disk: MB of the node's disk for each of its cores. What writes more is evicted: without a bound one
            payload fills the disk, and the node evicts the pods of others.
        pod: Further fields of the pod's specification, such as `nodeSelector`; they win over ours.
    """
    _check(job)
    asked = job.resources
    wanted: dict[str, Any] = {"cpu": str(asked.cores)}
    room = f"{disk * asked.cores}Mi"
    limits: dict[str, Any] = {"ephemeral-storage": room}
    if asked.memory is not None:
        wanted["memory"] = limits["memory"] = f"{asked.memory}Mi"
    if asked.gpus:
        limits["nvidia.com/gpu"] = str(asked.gpus)
    script = base64.b64encode(gzip.compress(job.script.encode(), mtime=0)).decode()
    if len(script) > _SCRIPT:
        raise SubmissionRefused(f"{job.stamp}: its script has {len(script)} bytes packed, allowed {_SCRIPT}")
    parts = [script[start : start + _ARGUMENT] for start in range(0, len(script), _ARGUMENT)]
    metadata = {
        "labels": _LABELS,
        "annotations": {
            _STAMP: job.stamp,
            **{f"pilotage-job/{name}": text for name, text in job.labels.items()},
        },
    }
    specification: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Else the script is the process 1, which ignores a signal that it has no handler for.
        "shareProcessNamespace": True,
        "containers": [
            {
                "name": "pilot",
                "image": image,
                "command": ["/bin/sh", "-c", _START, "sh"],
                "args": parts,
                # The name of its host is that of the pod, of which each is another.
                "env": [{"name": "PILOTAGE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "workingDir": "/pilotage",
                "resources": {"requests": wanted, "limits": limits},
                "volumeMounts": [{"name": "work", "mountPath": "/pilotage"}],
            }
        ],
        "volumes": [{"name": "work", "emptyDir": {"sizeLimit": room}}],
    }
    if asked.wall_time is not None:
        specification["activeDeadlineSeconds"] = asked.wall_time
    if job.avoided_nodes:
        specification["affinity"] = _avoid(job.avoided_nodes)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": make_name(job.stamp), **metadata},
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _KEPT,
            "template": {"metadata": metadata, "spec": {**specification, **pod}},
        },
    }


def make_name(stamp: str) -> str:
    """The name of the Job with a stamp, which may have characters that names do not."""
    return f"pilotage-{hashlib.sha256(stamp.encode()).hexdigest()[:40]}"


def _check(job: BatchJob) -> None:
    wrong = {
        "is to be alone on its node; Kubernetes has no word for it: let a queue select nodes": (
            job.resources.whole_node
        ),
        f"has flags ({' '.join(job.flags)}); Jobs take none: state fields of the queue": bool(job.flags),
        "has files beside its script; only pilots can run here": bool(job.inputs or job.outputs),
        "is no stamp": not is_stamp(job.stamp),
    }
    for problem, holds in wrong.items():
        if holds:
            raise SubmissionRefused(f"{job.stamp}: {problem}")


def _avoid(nodes: Collection[str]) -> Item:
    name = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": sorted(nodes)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [name]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """The Jobs of one namespace that are ours."""

    api: KubernetesApi
    image: str
    disk: int  #: MB for each core
    queues: Mapping[str, Mapping[str, Any]]  #: by name: fields of its pods

    def submit(self, job: BatchJob) -> str:
        """Create a Job; its name."""
        described = self._describe(job)
        try:
            self.api.create_job(described)
        except NoAnswer as error:
            raise SubmissionUncertain(f"{job.stamp}: {error}") from error
        except SubmissionRefused as error:
            raise SubmissionRefused(f"{job.stamp}: {error}") from error
        return make_name(job.stamp)

    def dry_run(self, job: BatchJob) -> None:
        """`SubmissionRefused` with the reason if the API server would not take the job."""
        self.api.create_job(self._describe(job), dry_run=True)

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        """The states of these Jobs, by one list of all and one of their pods."""
        return self._report(handles, self._list())

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The names of the Jobs with these stamps."""
        wanted = frozenset(stamps)
        listed = index_by_stamp(row for row in self._list() if row.stamp in wanted)
        return {stamp: tuple(row.reference for row in rows) for stamp, rows in listed.items()}

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        """`status`, and the stamps with a prefix of our Jobs that have not ended."""
        rows = self._list()
        alive = {row.stamp for row in rows if row.stamp.startswith(prefix) and row.state not in ENDED}
        return Survey(reports=self._report(handles, rows), stamps=frozenset(alive))

    def kill(self, handles: Sequence[Handle]) -> None:
        """Suspend the Jobs that have not ended: Kubernetes ends their pods, TERM first."""
        asked = {handle.stamp: handle for handle in handles}
        for row in self._list() if asked else ():
            handle = asked.get(row.stamp)
            if handle is None or row.state in ENDED or (handle.only_waiting and row.state is State.RUNNING):
                continue
            mark = {"metadata": {"annotations": {_KILLED: "true"}}, "spec": {"suspend": True}}
            self.api.patch_job(row.reference, mark)

    def output(self, handle: Handle) -> Output:
        """What the pod wrote so far, its error output with it; of a Job that was killed nothing is left."""
        pods = [each for each in self.api.list("pods", _SELECTOR) if _find_stamp(each) == handle.stamp]
        texts = [self.api.read_log(each["metadata"]["name"], most=_LAST) for each in pods[-1:]]
        return Output(stdout=b"".join(texts), stderr=b"")

    def forget(self, handles: Sequence[Handle]) -> None:
        """Delete Jobs that ended, with their pods; one that has not is left."""
        stamps = {handle.stamp for handle in handles}
        for row in self._list() if stamps else ():
            if row.stamp in stamps and row.state in ENDED:
                self.api.delete_job(row.reference)

    def capacity(self) -> Mapping[str, Capacity]:
        """Each queue with what the namespace's quota of `requests.cpu` allows all together; none: empty."""
        quotas = [each.get("status", {}) for each in self.api.list("resourcequotas")]
        limited = [each for each in quotas if "requests.cpu" in each.get("hard", {})]
        if not limited:
            return {}
        cores = min(parse_cores(each["hard"]["requests.cpu"]) for each in limited)
        free = min(
            parse_cores(each["hard"]["requests.cpu"]) - parse_cores(each.get("used", {}).get("requests.cpu"))
            for each in limited
        )
        states = [row.state for row in self._list()]
        found = Capacity(
            cores=math.floor(cores),
            free_cores=max(0, math.floor(free)),
            waiting=states.count(State.WAITING),
            running=states.count(State.RUNNING),
        )
        return dict.fromkeys(self.queues, found)

    def _describe(self, job: BatchJob) -> Item:
        if job.queue not in self.queues:
            known = ", ".join(sorted(self.queues))
            raise SubmissionRefused(f"{job.stamp}: no queue {job.queue} in the settings, there are {known}")
        return describe(job, self.image, self.disk, self.queues[job.queue])

    def _list(self) -> list[ListedJob]:
        """Our Jobs with what their pods tell; the Jobs first: a pod that ends meanwhile tells more."""
        jobs = self.api.list("jobs", _SELECTOR)
        pods = {_find_stamp(each): each for each in self.api.list("pods", _SELECTOR)}
        return [_read(each, pods.get(stamp, {}), stamp) for each in jobs if (stamp := _find_stamp(each))]

    def _report(self, handles: Sequence[Handle], rows: Iterable[ListedJob]) -> Mapping[str, JobReport]:
        listed = index_by_stamp(rows)
        found: dict[str, JobReport] = {}
        for handle in handles:
            row = choose_job(listed.get(handle.stamp, ()), handle)
            marks = StatusMarks(
                exit_code=row.exit_code if row else None,
                killed=row is not None and row.state is State.KILLED,
            )
            found[handle.stamp] = job_report(row, marks, handle)
        return found


def _find_stamp(item: Item) -> str:
    return str(item.get("metadata", {}).get("annotations", {}).get(_STAMP, ""))


def _read(job: Item, pod: Item, stamp: str) -> ListedJob:
    status, state = job.get("status", {}), State.WAITING
    holds = {each["type"]: each for each in status.get("conditions", ()) if each.get("status") == "True"}
    is_killed = _KILLED in job["metadata"].get("annotations", {})
    if "Complete" in holds:
        state = State.DONE
    elif is_killed and ("Failed" in holds or not status.get("active")):
        state = State.KILLED
    elif "Failed" in holds:
        state = State.FAILED
    elif status.get("ready"):
        state = State.RUNNING
    exit_code, message = _read_pod(pod)
    ended = holds.get("Failed", {})
    return ListedJob(
        stamp=stamp,
        reference=str(job["metadata"]["name"]),
        state=state,
        message=message or str(ended.get("message", "")),
        exit_code=0 if state is State.DONE else exit_code if state in ENDED else None,
        node=str(pod.get("spec", {}).get("nodeName", "")),
    )


def _read_pod(pod: Item) -> tuple[int | None, str]:
    """The exit status of a pod's container, if it has ended, and the reason of its state."""
    status = pod.get("status", {})
    containers = status.get("containerStatuses", ())
    state = containers[0].get("state", {}) if containers else {}
    unscheduled = [each for each in status.get("conditions", ()) if each.get("reason") == "Unschedulable"]
    told = [status, state.get("terminated", {}), state.get("waiting", {}), *unscheduled]
    words = [f"{each['reason']}: {each.get('message', '')}".rstrip(": ") for each in told if "reason" in each]
    exit_code = state.get("terminated", {}).get("exitCode")
    return exit_code, next(iter(words), "")


def parse_cores(quantity: str | None) -> float:
    """Cores of a quantity such as `4`, `500m` or `2k`; none: 0. Source: Kubernetes, quantity."""
    text = quantity or "0"
    factor = {"m": 0.001, "k": 1000.0}.get(text[-1:], 1.0)
    return float(text.rstrip("mk")) * factor


QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")]


class KubernetesSettings(SystemSettings):
    """Settings of a namespace of a cluster."""

    api: ApiServer
    image: str = Field(min_length=1, max_length=1000, pattern=r"^\S+$")  #: of pilots, best by its digest
    disk: int = Field(default=20_000, ge=100, le=10_000_000)  #: MB of the node's for each core of a pilot
    queues: dict[QueueName, dict[str, Any]] = Field(min_length=1)  #: by name: fields of its pods

    @property
    def is_remote(self) -> bool:
        """Its jobs are given to the API server."""
        return True


def _open(settings: KubernetesSettings, connections: Connections) -> Kubernetes:
    api = KubernetesApi(settings.api, connect=connections.wrap_http(connect))
    connections.stack.callback(api.close)
    return Kubernetes(api=api, image=settings.image, disk=settings.disk, queues=settings.queues)


KIND: Final = BatchSystemKind(open=_open, settings=KubernetesSettings)
