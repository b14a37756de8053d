"""A generator of clients makes a working client of the OpenAPI description, with typed answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.debian import ALL_OF_THEM
from tests.support.service import Service

#: In an environment of its own: it needs other versions of packages than this program.
_PYTHON = (
    *("uv", "run", "--quiet", "--no-project", "--with", "openapi-python-client==0.29.1"),
    *("--python", sys.executable, "python"),
)
_GENERATE = ("-m", "openapi_python_client", "generate", "--meta", "none", "--output-path", "client")
#: It has no bodies of type `application/x-tar`.
_NOT_GENERATED = {"leases_deliver_output", "sandboxes_store"}
CALLS = """
import json, sys
from client import AuthenticatedClient
from client.api.explanations import jobs_explain
from client.api.jobs import jobs_get, jobs_kill, jobs_list, jobs_submit
from client.models.submission import Submission

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
job = {"Executable": "run.sh", "JobName": "scan-17"}
body = Submission.from_dict({"jobs": [job, job]})
submitted = [jobs_submit.sync(client=client, body=body, idempotency_key="once").job_ids for _ in range(2)]
first, second = submitted[0]
missing = jobs_get.sync(10**6, client=client)
print(json.dumps({
    "repeated": submitted[0] == submitted[1],
    "name": jobs_get.sync(first, client=client).job_name,
    "listed": [each.job_id for each in jobs_list.sync(client=client, limit=5).jobs] == [second, first],
    "eligible": jobs_explain.sync(first, client=client).eligible_queues > 0,
    "killed": jobs_kill.sync(second, client=client).status,
    "error": [type(missing).__name__, missing.error.code],
}))
"""


def _run(*words: str, at: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        [*_PYTHON, *words],
        cwd=at,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path, "NO_PROXY": "127.0.0.1"},
    )


def test_a_generated_client_submits_lists_explains_and_kills(service: Service, tmp_path: Path) -> None:
    installed = _run("-c", "import openapi_python_client", at=tmp_path)
    if installed.returncode and not ALL_OF_THEM:
        pytest.skip(f"the generator cannot be installed: {installed.stderr:.200}")
    document = service.operator().get("/openapi.json").json()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    done = _run(*_GENERATE, "--path", "openapi.json", at=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "duplicate" not in done.stdout, done.stdout
    made = {path.stem for path in (tmp_path / "client" / "api").glob("*/*.py")} - {"__init__"}
    named = {each["operationId"] for paths in document["paths"].values() for each in paths.values()}
    assert named - made == _NOT_GENERATED

    (tmp_path / "calls.py").write_text(CALLS)
    called = _run("calls.py", service.url, service.token("user", vo="cms", user="ada"), at=tmp_path)
    assert called.returncode == 0, called.stderr
    assert json.loads(called.stdout) == {
        "repeated": True,
        "name": "scan-17",
        "listed": True,
        "eligible": True,
        "killed": "Killed",
        "error": ["ErrorAnswer", "job_not_found"],
    }
