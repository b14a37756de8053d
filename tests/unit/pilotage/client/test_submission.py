import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pilotage.client import own_plan, submission
from pilotage.client.api import ApiError, ServiceClient
from pilotage.client.errors import WrongUsage
from pilotage.client.submission import JobSource, PlannedJobs

NOT_THERE = ApiError("not found", status=404, code="not_found", details={})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "run.sh").write_text("echo hello\n")
    (tmp_path / "run.sh").chmod(0o755)
    return tmp_path


class Earlier(ServiceClient):
    """A service that plans nothing."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9", "x")

    def plan_submission(self, _: Mapping[str, object]) -> dict[str, Any]:
        raise NOT_THERE


def plan_text(text: str, directory: Path, **parameters: list[str]) -> list[PlannedJobs]:
    source = JobSource(content=text, name="job.jdl", directory=directory)
    return submission.plan_requests(Earlier(), [source], parameters=parameters, count=1)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match=r"run\.sh: no such file"):
        plan_text('Executable = "a"; InputSandbox = {"run.sh"};', tmp_path)


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b'[ Executable = "a";\r\n  Arguments = "caf\xe9"; ]', "2: byte 0xe9"),
        ('[ Executable = "a"; ]'.encode("utf-16"), "1: byte 0xff"),
    ],
)
def test_a_description_that_is_not_utf_8_is_named_with_the_line(
    tmp_path: Path, content: bytes, where: str
) -> None:
    (tmp_path / "job.jdl").write_bytes(content)
    with pytest.raises(WrongUsage, match=rf"job\.jdl:{where} is not UTF-8"):
        JobSource.from_file(tmp_path / "job.jdl")


def test_two_files_of_one_name_cannot_lie_in_one_directory(directory: Path) -> None:
    (directory / "a").mkdir()
    (directory / "a" / "run.sh").write_text("")
    both = rf"{directory}/run\.sh and {directory}/a/run\.sh are two files called run\.sh"
    with pytest.raises(WrongUsage, match=both):
        plan_text("Executable: x\nInputSandbox: [run.sh, a/run.sh]\n", directory)


def test_a_file_that_is_stated_twice_is_sent_once(directory: Path) -> None:
    (directory / "a").mkdir()
    (directory / "a" / "run.sh").symlink_to(directory / "run.sh")
    links = ('"run.sh", "a/run.sh"', '"a/run.sh", "run.sh"')
    for names in (*links, '"run.sh", "run.sh"', '"run.sh", "./run.sh"', f'"run.sh", "{directory}/run.sh"'):
        (request,) = plan_text(f'[ Executable = "run.sh"; InputSandbox = {{{names}}}; ]', directory)
        assert [file.name for file in request.files] == ["run.sh"]


def test_equal_files_make_equal_archives(directory: Path) -> None:
    file = directory / "run.sh"
    with submission.pack_sandbox([file]) as archive:
        first = archive.read()
    file.touch()
    with submission.pack_sandbox([file]) as archive:
        assert archive.read() == first


def test_the_archive_holds_files_by_their_base_names_executable_as_they_were(directory: Path) -> None:
    with submission.pack_sandbox([directory / "run.sh"]) as stream, tarfile.open(fileobj=stream) as archive:
        (member,) = archive.getmembers()
    assert (member.name, member.mode) == ("run.sh", 0o755)


def test_links_in_a_sandbox_are_followed(directory: Path) -> None:
    (directory / "link").symlink_to(directory / "run.sh")
    with submission.pack_sandbox([directory / "link"]) as stream, tarfile.open(fileobj=stream) as archive:
        (member,) = archive.getmembers()
    assert member.isfile()


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole program", "client alone"])
@pytest.mark.parametrize(
    "text",
    [
        '[ VO = "cms"; Executable = "run.sh"; InputSandbox = {"run.sh", "b c.txt", "LFN:/x/y"}; ]',
        'VO = "cms";\nExecutable = "run.sh";\nInputSandbox = "run.sh, b c.txt";\n',
        "VO: cms\nExecutable: run.sh\nInputSandbox: [run.sh, 'b c.txt', 'sha256:ab']\n",
        "Executable: run.sh\nInputSandbox:\n  - run.sh\n  - 'b c.txt'\nvo: cms\n",
        '{"Executable": "run.sh", "InputSandbox": ["run.sh", "b c.txt"], "VO": "cms"}',
    ],
    ids=["JDL", "JDL with one text", "YAML", "YAML in lines", "JSON"],
)
def test_files_are_found_for_a_service_that_does_not_name_them(
    text: str, *, is_whole: bool, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "b c.txt").write_text("")
    if not is_whole:
        monkeypatch.setitem(sys.modules, "optimizers.submit", None)
    [request] = plan_text(text, directory)
    assert [file.name for file in request.files] == ["run.sh", "b c.txt"]
    assert (request.vo, request.parts, request.is_text, request.jobs) == ("cms", [(text, 1)], True, 1)


def test_a_client_alone_names_what_such_a_service_cannot_do(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optimizers.submit", None)
    with pytest.raises(WrongUsage, match="parameters need a service"):
        plan_text("Executable: a\n", directory, A=["1"])
    with pytest.raises(WrongUsage, match="placeholders needs a service"):
        plan_text("Executable: a\nInputSandbox: 'in_%s'\n", directory)
    keywords = JobSource(
        content={"Executable": "a", "InputSandbox": ["run.sh"]}, name="", directory=directory
    )
    requests = submission.plan_requests(Earlier(), [keywords], parameters={}, count=2500)
    assert [(each.jobs, each.is_text) for each in requests] == [(1000, False), (1000, False), (500, False)]
    assert {each.files for each in requests} == {(directory / "run.sh",)}


@pytest.mark.parametrize(
    ("text", "files", "vo"),
    [
        ("Executable: a\nInputSandbox: a.txt  # the data\n", ["a.txt"], None),
        ('{"Executable":"a","InputSandbox":"x","JobName":"b"}', ["x"], None),
        ('/*\nInputSandbox = {"old"};\n*/\nInputSandbox = {"new"};', ["new"], None),
        ('InputSandbox = {"a{1}.txt", "b//c.txt"};', ["a{1}.txt", "b//c.txt"], None),
        ('VO = "cms";\nRequirements =\nVO == "x";', [], "cms"),
        ('Requirements =\nVO == "x";', [], None),
    ],
)
def test_a_text_is_read_simply_but_rightly(text: str, files: list[str], vo: str | None) -> None:
    found = own_plan._read_simply({"jdl": text, "name": "job.jdl"})
    assert (found["files"], found["vo"]) == (files, vo)


def test_descriptions_are_planned_together_as_far_as_the_service_reads_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def plan(_: ServiceClient, question: Mapping[str, Any]) -> dict[str, Any]:
        sizes.append(len(question["sources"]))
        return own_plan.make_plan(question["sources"], {}, 1, reason=NOT_THERE)

    monkeypatch.setattr(ServiceClient, "plan_submission", plan)
    monkeypatch.setattr(submission, "_BYTES", 10_000)
    sources = [
        JobSource(content={"Executable": "a", "Arguments": "x" * size}, name="", directory=directory)
        for size in [1] * 1100 + [9000, 9000]
    ]
    with ServiceClient("http://127.0.0.1:9", "x") as service:
        found = submission.plan_requests(service, sources, parameters={}, count=1)
    assert sum(request.jobs for request in found) == len(sources)
    assert sizes[-1] == 1, "two long ones are too much"
    assert sum(sizes) == len(sources)
    assert len(sizes) < 10


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole program", "client alone"])
def test_an_executable_beside_the_description_is_sent(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    if not is_whole:
        monkeypatch.setitem(sys.modules, "optimizers.submit", None)
    (directory / "data.txt").write_text("")
    for text in (
        'Executable = "run.sh";',
        'Executable = "./run.sh"; VO = "cms"; InputSandbox = {"data.txt"};',
    ):
        (request,) = plan_text(text, directory)
        assert directory / "run.sh" in request.files
        assert request.vo == ("cms" if "VO" in text else None)
        assert not request.warnings
    (request,) = plan_text('Executable = "sh";', directory)
    assert (request.files, request.warnings) == ((), ()), "a program of every machine"


def test_files_that_nobody_sends_are_warned_of_once(directory: Path) -> None:
    def answer(*_: object, **__: object) -> list[int]:
        return [1]

    service: Any = Earlier()
    service.submit = answer
    text = '[ Executable = "nosuch.sh"; Arguments = "run.sh --n 3"; ]'
    sources = [JobSource(content=text, name="", directory=directory)]
    requests = submission.plan_requests(service, sources, parameters={}, count=2500)
    warnings: list[str] = []
    assert len(list(submission.send_requests(service, requests, warn=warnings.append))) == 3
    assert warnings == [
        submission._NOBODY_SENDS.format(name="nosuch.sh"),
        "Arguments: run.sh lies beside the description, but InputSandbox does not have it",
    ]


def test_jobs_that_name_each_other_go_in_one_request_each_with_its_sandbox(directory: Path) -> None:
    (directory / "fit.sh").write_text("echo fit\n")
    sent: list[dict[str, Any]] = []
    archives: list[list[str]] = []

    def upload(archive: Any, *, vo: str | None) -> str:
        with tarfile.open(fileobj=archive) as opened:
            archives.append(opened.getnames())
        return f"sha256:{len(archives)}"

    def submit(**given: Any) -> list[int]:
        sent.append(given)
        return [1, 2, 3]

    service: Any = Earlier()
    service.submit, service.upload_sandbox = submit, upload
    text = "- {JobName: a, Executable: run.sh}\n- {JobName: b, Executable: fit.sh, After: a}\n"
    text += "- {Executable: /bin/true}\n"
    source = JobSource(content=text, name="steps.yaml", directory=directory)
    requests = submission.plan_requests(service, [source], parameters={}, count=1)
    assert list(submission.send_requests(service, requests, warn=pytest.fail)) == [[1, 2, 3]]
    [body] = sent
    assert archives == [["fit.sh", "run.sh"]], "jobs that lie in one directory share one"
    assert [job["InputSandbox"] for job in body["jobs"]] == [["sha256:1"], ["sha256:1"], []]
    assert [job.get("After") for job in body["jobs"]] == [None, "a", None]


@pytest.mark.parametrize("number", [1000, 1001])
def test_more_descriptions_that_name_each_other_than_a_request_has_are_refused(
    directory: Path, number: int
) -> None:
    sent: list[int] = []
    service: Any = Earlier()
    service.submit = lambda **given: sent.append(len(given["jobs"])) or [*range(len(given["jobs"]))]
    chain = [{"JobName": f"c{n}", "Executable": "/bin/true", "After": f"c{n - 1}"} for n in range(1, number)]
    jobs = [{"JobName": "c0", "Executable": "/bin/true"}, *chain]
    sources = [JobSource(content=job, name="chain", directory=directory) for job in jobs]
    requests = submission.plan_requests(service, sources, parameters={}, count=1)
    send = submission.send_requests(service, requests, warn=pytest.fail)
    if number > 1000:
        with pytest.raises(WrongUsage, match="one request: 1,001 descriptions, allowed are 1,000"):
            list(send)
        assert sent == []
    else:
        assert [len(ids) for ids in send] == sent == [1000]
