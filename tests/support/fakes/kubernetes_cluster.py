"""A stand-in for Kubernetes' API server and what is behind it: Jobs run as processes of this host.

What it is sent and what it answers is validated strictly against the schemas that Kubernetes publishes, which
the package `kubernetes-validate` has. No cluster has confirmed how it acts; it follows the documentation of
Jobs: a suspended Job has its pods deleted, one whose pod failed is Failed with `BackoffLimitExceeded`.
"""

import copy
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import kubernetes_validate
import psutil

Item = dict[str, Any]
TOKEN: Final = "token-of-the-account"
_VERSION: Final = kubernetes_validate.latest_version()
_AT: Final = "2026-11-29T12:00:00Z"
_JOBS = re.compile(r"/apis/batch/v1/namespaces/(?P<namespace>[^/]+)/jobs(/(?P<name>[^/]+))?")
_CORE = re.compile(
    r"/api/v1/namespaces/(?P<namespace>[^/]+)/(?P<what>pods|resourcequotas)(/(?P<name>.+)/log)?"
)


@dataclass
class RunningPod:
    """The one pod of a Job, a process of this host."""

    job: Item
    directory: Path
    log: Path
    process: "subprocess.Popen[bytes]"

    def end(self) -> None:
        """As the kubelet does: TERM, then KILL, to all its processes."""
        processes = []
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            processes = [parent, *parent.children(recursive=True)]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in processes:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        self.process.wait()

    def describe(self) -> Item:
        """The Pod, as the API server shows it."""
        template = self.job["spec"]["template"]
        code = self.process.poll()
        name = f"{self.job['metadata']['name']}-abcde"
        state: Item = {"running": {"startedAt": _AT}}
        if code is not None:
            exit_code = 128 - code if code < 0 else code
            reason = "Error" if exit_code else "Completed"
            state = {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": _AT}}
        container = {
            "name": "pilot",
            "ready": code is None,
            "restartCount": 0,
            "image": "i",
            "imageID": "i",
            "state": state,
        }
        phase = "Running" if code is None else "Succeeded" if code == 0 else "Failed"
        labels = {
            **template["metadata"]["labels"],
            "batch.kubernetes.io/job-name": self.job["metadata"]["name"],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": name, "labels": labels},
            "spec": {**template["spec"], "nodeName": "node1"},
            "status": {"phase": phase, "containerStatuses": [container]},
        }


@dataclass
class FakeCluster:
    """One namespace. Requests go to `answer`; what was asked for is in `requests`."""

    directory: Path
    namespace: str = "pilots"
    cores: int | None = 8  #: quota of `requests.cpu`; None: there is none
    page: int = 3  #: objects in one answer of a list, whatever was asked for
    requests: list[httpx.Request] = field(default_factory=list)
    jobs: dict[str, Item] = field(default_factory=dict)
    pods: dict[str, RunningPod] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def close(self) -> None:
        for each in self.pods.values():
            each.end()

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized", "Unauthorized")
        found = _JOBS.fullmatch(request.url.path) or _CORE.fullmatch(request.url.path)
        if found is None or found["namespace"] != self.namespace:
            return _status(403, "Forbidden", f'cannot access "{request.url.path}"')
        if found.re is _CORE:
            return self._answer_core(request, found["what"], found["name"])
        name = found["name"]
        if request.method == "POST":
            return self._create(json.loads(request.content), dry_run="dryRun" in request.url.params)
        if request.method == "GET" and name is None:
            return self._list(
                request, "JobList", "batch/v1", [self._show(each) for each in self.jobs.values()]
            )
        if name not in self.jobs:
            return _status(404, "NotFound", f'jobs.batch "{name}" not found')
        if request.method == "DELETE":
            return self._delete(name)
        assert request.method == "PATCH"
        assert request.headers["Content-Type"] == "application/merge-patch+json"
        return self._patch(name, json.loads(request.content))

    def _answer_core(self, request: httpx.Request, what: str, name: str | None) -> httpx.Response:
        if what == "resourcequotas":
            return self._list(request, "ResourceQuotaList", "v1", self._quotas())
        if name is None:
            return self._list(request, "PodList", "v1", [each.describe() for each in self.pods.values()])
        for each in self.pods.values():
            if each.describe()["metadata"]["name"] == name:
                content = each.log.read_bytes()[: int(request.url.params["limitBytes"])]
                return httpx.Response(200, content=content, headers={"Content-Type": "text/plain"})
        return _status(404, "NotFound", f'pods "{name}" not found')

    def _create(self, job: Item, *, dry_run: bool) -> httpx.Response:
        name = job["metadata"]["name"]
        try:
            _validate(job)
        except kubernetes_validate.ValidationError as error:
            return _status(422, "Invalid", f'Job.batch "{name}" is invalid: {error.message}')
        if name in self.jobs:
            return _status(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        if not dry_run:
            job = copy.deepcopy(job)
            job["metadata"] |= {"namespace": self.namespace, "uid": f"uid-{next(self._numbers)}"}
            self.jobs[name] = job
            self._run(job)
        return httpx.Response(201, json=job)

    def _run(self, job: Item) -> None:
        [container] = job["spec"]["template"]["spec"]["containers"]
        directory = self.directory / job["metadata"]["uid"]
        directory.mkdir()
        log = directory.with_suffix(".log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*container["command"], *container["args"]],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": os.environ["PATH"]},
            )
        self.pods[job["metadata"]["name"]] = RunningPod(job, directory, log, process)

    def _show(self, job: Item) -> Item:
        pod = self.pods.get(job["metadata"]["name"])
        code = pod.process.poll() if pod else None
        status: Item = {}
        if pod is not None and code is None:
            status = {"active": 1, "ready": 1, "startTime": _AT}
        elif pod is not None:
            ended = (
                {"type": "Complete"} if code == 0 else {"type": "Failed", "reason": "BackoffLimitExceeded"}
            )
            message = {} if code == 0 else {"message": "Job has reached the specified backoff limit"}
            status = {"conditions": [{**ended, **message, "status": "True"}]}
        elif job["spec"].get("suspend"):
            status = {"conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended"}]}
        return {**job, "status": status}

    def _patch(self, name: str, changes: Item) -> httpx.Response:
        job = self.jobs[name] = _merge(self.jobs[name], changes)
        pod = self.pods.get(name)
        if job["spec"].get("suspend") and pod is not None and pod.process.poll() is None:
            pod.end()
            del self.pods[name]
        return httpx.Response(200, json=self._show(job))

    def _delete(self, name: str) -> httpx.Response:
        del self.jobs[name]
        if name in self.pods:
            self.pods.pop(name).end()
        return httpx.Response(200, json={"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _quotas(self) -> list[Item]:
        if self.cores is None:
            return []
        used = sum(pod.process.poll() is None for pod in self.pods.values())
        hard = {"requests.cpu": str(self.cores), "count/jobs.batch": "1k"}
        quota = {"hard": hard, "used": {"requests.cpu": f"{used * 1000}m", "count/jobs.batch": "0"}}
        about = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pilots"}}
        return [{**about, "spec": {"hard": hard}, "status": quota}]

    def _list(self, request: httpx.Request, kind: str, version: str, items: list[Item]) -> httpx.Response:
        """A page; `continue` is opaque to clients."""
        for each in items:
            _validate(each)
        wanted = request.url.params.get("labelSelector", "")
        name, _, value = wanted.partition("=")
        found = [each for each in items if not wanted or each["metadata"]["labels"].get(name) == value]
        start = int(request.url.params.get("continue", "0"))
        end = start + min(self.page, int(request.url.params["limit"]))
        metadata = {"resourceVersion": "1"} | ({"continue": str(end)} if end < len(found) else {})
        # Items of a list name neither their kind nor their version.
        shown = [
            {key: value for key, value in each.items() if key not in ("kind", "apiVersion")} for each in found
        ]
        content = {"kind": kind, "apiVersion": version, "metadata": metadata, "items": shown[start:end]}
        return httpx.Response(200, json=content)


def _validate(item: Item) -> None:
    kubernetes_validate.validate(item, _VERSION, strict=True)


def _merge(target: Mapping[str, Any], changes: Mapping[str, Any]) -> Item:
    """Source: RFC 7396."""
    merged = {**target}
    for name, value in changes.items():
        merged[name] = _merge(target.get(name, {}), value) if isinstance(value, Mapping) else value
    return merged


def _status(code: int, reason: str, message: str) -> httpx.Response:
    content = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return httpx.Response(code, json={**content, "message": message, "reason": reason, "code": code})
