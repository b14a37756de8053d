"""One more row in the table of fields is a filter, a column and an option everywhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[3]
#: The row, and the one that it stands before.
ROW = 'JobField(name="description_id", type=int, title="Text", filters=[Filter(has_several=True)]),\n'
NEXT = "    LOCAL_STATUS := JobField("

#: Prints what a user sees of the program.
LOOK = """
import json, pathlib, sys
from typer.testing import CliRunner
from pilotage import Client
from pilotage.cli import application
from tests.support.service import running_on_sqlite

with running_on_sqlite(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])) as service:
    user = service.user("ada", vo="cms")
    for _ in range(2):
        user.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).raise_for_status()
    jobs = user.get("/api/v1/jobs").json()["jobs"]
    wanted = {"description_id": jobs[0].get("description_id", 0)}
    browser, token = service.client(), service.token("user", vo="cms", user="ada")
    browser.cookies.set(f"pilotage-{service.url.rpartition(':')[2]}", token)
    with Client(service.url, token) as client:
        by_client = [job.id for job in client.jobs(**{name: str(value) for name, value in wanted.items()})]
    seen = {
        "jobs": jobs,
        "document": service.client().get("/openapi.json").json(),
        "filtered": user.get("/api/v1/jobs", params=wanted).json(),
        "counted": user.get("/api/v1/jobs/summary", params={"by": "description_id"}).json(),
        "killed": user.post("/api/v1/jobs/kill", json=wanted).json(),
        "csv": browser.get("/jobs/download", params=wanted).text,
        "page": browser.get("/jobs", params={"columns": "description_id", "sort": "-description_id"}).text,
        "help": CliRunner().invoke(application.application(), ["job", "list", "--help"]).output,
        "client": [by_client, Client.jobs.__doc__],
    }
print(json.dumps(seen))
"""


def run(directory: Path, code: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a program that imports the packages in a directory before those of the project."""
    env = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{PROJECT}", "COLUMNS": "200", "TERM": "dumb"}
    call = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(call, cwd=directory, env=env, capture_output=True, text=True, check=False)


def add_row(directory: Path, row: str) -> None:
    """Copy the package of the table, with one more row."""
    shutil.copytree(PROJECT / "requirements", directory / "requirements")
    table = directory / "requirements" / "job_fields.py"
    before, mark, behind = table.read_text().partition(NEXT)
    assert mark
    table.write_text(f"{before}    {row}{mark}{behind}")


@pytest.fixture(scope="module")
def seen(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("changed")
    add_row(directory, ROW)
    done = run(directory, LOOK, sqlite_template, tmp_path_factory.mktemp("service"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_jobs_are_filtered_and_counted_by_it(seen: dict[str, Any]) -> None:
    first, second = (job["description_id"] for job in seen["jobs"])
    assert first != second
    assert [job["description_id"] for job in seen["filtered"]["jobs"]] == [first]
    assert {row["description_id"]: row["count"] for row in seen["counted"]["summary"]} == {
        first: 1,
        second: 1,
    }
    assert seen["killed"]["job_ids"] == [seen["jobs"][0]["job_id"]]


def test_downloads_and_the_page_have_it(seen: dict[str, Any]) -> None:
    head, line = seen["csv"].splitlines()
    place = head.split(",").index("description_id")
    assert line.split(",")[place] == str(seen["jobs"][0]["description_id"])
    assert 'name="description_id"' in seen["page"], "an input of the filter"
    assert "sort=description_id" in seen["page"], "the head of the column"
    assert f'<td class="number">{seen["jobs"][0]["description_id"]}</td>' in seen["page"]


def test_the_command_line_and_the_client_have_it(seen: dict[str, Any]) -> None:
    assert "--description-id" in seen["help"]
    assert "Only jobs with this text." in seen["help"]
    assert seen["client"][0] == [seen["jobs"][0]["job_id"]]
    assert "`description_id`" in seen["client"][1]


def test_the_document_of_the_interface_has_it(seen: dict[str, Any]) -> None:
    paths, schemas = seen["document"]["paths"], seen["document"]["components"]["schemas"]
    for path in ("", "/summary", "/changes", "/events"):
        names = [each["name"] for each in paths[f"/api/v1/jobs{path}"]["get"]["parameters"]]
        assert "description_id" in names
    assert schemas["BulkChange"]["properties"]["description_id"]["anyOf"][0]["type"] == "array"
    assert schemas["JobAnswer"]["properties"]["description_id"]["type"] == "integer"


def test_a_row_without_a_column_of_its_name_fails_when_it_is_imported(tmp_path: Path) -> None:
    add_row(tmp_path, ROW.replace("description_id", "descripton_id"))
    done = run(tmp_path, "import taskqueue.jobs.columns")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'descripton_id'"
