"""The files with versions and digests fit `pyproject.toml`; what is optional may be missing."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pilotage.cli.errors import BEYOND_CLIENT, EXTRAS
from tests.support.left_out import needs

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRA = PYPROJECT["project"]["optional-dependencies"]
WHOLE = [*PYPROJECT["project"]["dependencies"], *EXTRA["postgresql"], *EXTRA["redis"], *EXTRA["ssh"]]
CLIENT = PYPROJECT["dependency-groups"]["client"]
FILES = [("requirements.txt", WHOLE), ("requirements-client.txt", CLIENT)]

#: Lets the program after it import none of some modules.
ONLY = """
import sys
foreign = set(sys.argv[1].split())
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in foreign:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
COMMAND = "from pilotage.cli.application import main\nmain(sys.argv[2:])"
#: Runs commands one after the other, each after a line with its words; then its status.
COMMANDS = """
from pilotage.cli.application import main
for line in sys.argv[2:]:
    print("#", line, file=sys.stderr)
    try:
        main(line.split())
    except SystemExit as ended:
        print(ended.code, file=sys.stderr)
"""


def pinned(file: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each package of a file: name, version, digests."""
    text = (ROOT / "deploy" / file).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        requirement, *digests = line.split("--hash=")
        name, version = requirement.partition(";")[0].split("==")
        yield canonicalize_name(name), version.strip(), [each.strip() for each in digests]


def list_names(file: str) -> set[str]:
    return {name for name, _, _ in pinned(file)}


@pytest.fixture(autouse=True)
def _own_home_and_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_HOME", str(tmp_path))
    monkeypatch.setenv("PILOTAGE_URL", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("PILOTAGE_TOKEN", "x")


@cache
def list_foreign(packages: frozenset[str]) -> list[str]:
    """Modules of other projects than these."""
    return sorted(
        module
        for module, names in packages_distributions().items()
        if not packages & set(map(canonicalize_name, names)) and "pilotage" not in names
    )


def run_with(packages: set[str], *words: str, program: str = COMMAND) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ONLY + program, " ".join(list_foreign(frozenset(packages))), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def run_each(packages: set[str], *lines: str) -> Mapping[str, str]:
    """What each command wrote to standard error, with its status at the end; one Python runs all."""
    done = run_with(packages, *lines, program=COMMANDS)
    parts = (each.partition("\n") for each in done.stderr.split("# ")[1:])
    return {line: said for line, _, said in parts}


@pytest.mark.parametrize(("file", "dependencies"), FILES)
def test_a_file_has_each_dependency_in_a_version_that_fits(file: str, dependencies: list[str]) -> None:
    versions = {name: version for name, version, _ in pinned(file)}
    for each in map(Requirement, dependencies):
        assert each.specifier.contains(versions[canonicalize_name(each.name)]), each


@pytest.mark.parametrize(("file", "dependencies"), FILES)
def test_each_package_has_digests_and_no_address(file: str, dependencies: list[str]) -> None:
    for name, _, digests in pinned(file):
        assert digests, name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in digests), name
    assert "://" not in (ROOT / "deploy" / file).read_text()


def test_versions_for_clients_are_those_of_the_whole() -> None:
    whole = {name: version for name, version, _ in pinned("requirements.txt")}
    assert {name: version for name, version, _ in pinned("requirements-client.txt")}.items() <= whole.items()


def test_commands_of_users_need_the_packages_for_clients_only() -> None:
    lines = (
        *("job list", "job show 1", "job explain 1", "job kill 1", "pool list", "queue list", "site list"),
        *("pilots list", "config history", "config show", "accounting", "login"),
    )
    found = run_each(list_names("requirements-client.txt"), *lines)
    assert {line: "127.0.0.1:9" in said for line, said in found.items()} == dict.fromkeys(lines, True), found


def test_a_job_is_submitted_with_the_packages_for_clients_only(tmp_path: Path) -> None:
    (tmp_path / "job.jdl").write_text('[ Executable = "/bin/true"; Requirements = [ Memory = 1 ]; ]')
    words = ("job", "submit", str(tmp_path / "job.jdl"), "--patience", "0")
    done = run_with(list_names("requirements-client.txt"), *words)
    assert "127.0.0.1:9" in done.stderr, done.stderr


def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    missing = {"psycopg", "psycopg-binary", "redis", "rq", "asyncssh", "opentelemetry-sdk"}
    lines = {
        "db upgrade --database-url postgresql://127.0.0.1:9/none": "postgresql",
        "worker --redis-url redis://127.0.0.1:9": "redis",
    }
    found = run_each(list_names("requirements.txt") - missing, *lines)
    for line, extra in lines.items():
        assert re.fullmatch(rf".*pip install 'pilotage\[{extra}\]'.*\n1\n", found[line]), found


@needs("otel")
def test_an_agent_names_the_missing_package_for_traces() -> None:
    packages = {name for name in list_names("requirements.txt") if not name.startswith("opentelemetry")}
    agent = "agent traces --once --otlp-url http://127.0.0.1:9"
    found = run_each(packages, "db upgrade", agent)
    assert found["db upgrade"].endswith("0\n"), found
    assert re.fullmatch(r".*pip install 'pilotage\[otel\]'.*\n1\n", found[agent]), found


DIRECTOR = """
name: test
url: http://127.0.0.1:9
vos: {cms: {token_file: token}}
systems: {s: {kind: slurm, directory: /tmp/none, ssh: {host: h, user: u, key: key, known_hosts: hosts}}}
queues: [{queue: A.B.org/ce/q, system: s, batch_queue: q}]
"""


def test_a_director_names_the_missing_package_for_ssh_in_each_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("x")
    Path("token").chmod(0o600)
    Path("director.yaml").write_text(DIRECTOR)
    director = "director --config director.yaml"
    lines = (director, f"{director} --once", f"{director} --check")
    found = run_each(list_names("requirements.txt") - {"asyncssh"}, *lines)
    assert found.keys() == {*lines}
    for said in found.values():
        assert "pip install 'pilotage[ssh]'" in said
        assert said.endswith("\n1\n")


def test_where_only_the_commands_are_installed_others_name_what_is_missing() -> None:
    lines = ("up", "serve", "doctor", "db upgrade", "key list")
    found = run_each(list_names("requirements-client.txt"), *lines)
    assert found.keys() == set(lines)
    for said in found.values():
        text = r".*the package \w+ is not installed; `.* -m pip install 'pilotage'` installs it\n1\n"
        assert re.fullmatch(text, said), said


def test_one_of_several_processes_names_what_is_missing() -> None:
    program = """
from pilotage.cli import process_setup
def work():
    raise ModuleNotFoundError("No module named 'redis'", name="redis")
process_setup._run(work)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    assert "pip install 'pilotage[redis]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_python_client_needs_the_packages_for_clients_only() -> None:
    packages = list_names("requirements-client.txt")
    program = "from pilotage import Client\nClient('http://127.0.0.1:9', 'x').jobs()"
    done = run_with(packages, program=program)
    assert done.returncode == 0, done.stderr


def test_the_program_of_one_machine_needs_no_extra() -> None:
    missing = {"psycopg", "psycopg-binary", "redis", "rq", "asyncssh"}
    whole = list_names("requirements.txt")
    program = "import pilotage.cli.doctor, pilotage.cli.processes.up, pilotage.cli.processes.gateway"
    done = run_with(whole - missing, program=program)
    assert done.returncode == 0, done.stderr


def test_the_table_of_extras_is_that_of_the_project() -> None:
    for module, extra in EXTRAS.items():
        assert module in {Requirement(each).name.removesuffix("-sdk") for each in EXTRA[extra]}


def test_all_packages_beyond_those_for_clients_are_explained_when_they_are_missing() -> None:
    beyond = list_names("requirements.txt") - list_names("requirements-client.txt")
    dependencies = {
        canonicalize_name(Requirement(each).name) for each in PYPROJECT["project"]["dependencies"]
    }
    modules = {
        module for module, names in packages_distributions().items()
        if {canonicalize_name(name) for name in names} & beyond & dependencies
    }  # fmt: skip
    assert {each for each in modules if not each.startswith("_")} - {"multipart"} <= BEYOND_CLIENT
