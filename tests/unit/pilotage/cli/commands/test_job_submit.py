import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from cs_config.options import bounds
from optimizers.description import parametric
from optimizers.submit import checking
from pilotage.cli.commands import job_submit
from pilotage.cli.commands.job_submit import JobDraft
from pilotage.cli.errors import WrongUsage
from pilotage.fabric.client import ServiceAway, ServiceClient
from pilotage.service import routing
from requirements.errors import InvalidJob
from tests.submitted import ANN, grid

JDL = '[ Executable = "run.sh"; Arguments = "%(year)s"; InputSandbox = {"run.sh", "sha256:ab", "LFN:/x/y"}; ]'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "run.sh").write_text("echo hello\n")
    (tmp_path / "run.sh").chmod(0o755)
    return tmp_path


def drafts(text: str, directory: Path) -> list[JobDraft]:
    return job_submit.read_drafts(text, file="job.jdl", directory=directory)


def test_files_of_the_sandbox_are_found_beside_the_description(directory: Path) -> None:
    (draft,) = drafts(JDL, directory)
    assert draft.files == (directory / "run.sh",)
    assert draft.text == JDL


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match=r"run\.sh: no such file"):
        drafts(JDL, tmp_path)


def test_two_files_of_one_name_cannot_lie_in_one_directory(directory: Path) -> None:
    (directory / "a").mkdir()
    (directory / "a" / "run.sh").write_text("")
    with pytest.raises(WrongUsage, match=r"run\.sh"):
        drafts("Executable: x\nInputSandbox: [run.sh, a/run.sh]\n", directory)


def test_a_file_that_is_stated_twice_is_sent_once(directory: Path) -> None:
    for names in ('"run.sh", "run.sh"', '"run.sh", "./run.sh"', f'"run.sh", "{directory}/run.sh"'):
        (draft,) = drafts(f'[ Executable = "run.sh"; InputSandbox = {{{names}}}; ]', directory)
        assert [file.name for file in draft.files] == ["run.sh"]


def test_files_in_one_text_are_separated_by_commas(directory: Path) -> None:
    (directory / "12:30.txt").write_text("")
    (draft,) = drafts('[ Executable = "run.sh"; InputSandbox = "run.sh, 12:30.txt, LFN:/x"; ]', directory)
    assert draft.files == (directory / "run.sh", directory / "12:30.txt")


def test_files_of_all_jobs_of_a_parametric_one_are_sent(directory: Path) -> None:
    (directory / "data.txt").write_text("")
    (directory / "more.txt").write_text("")
    text = "Executable: x\nInputSandbox: [run.sh, '%(F)s']\nParameters.F: [[data.txt, LFN:/x], more.txt]\n"
    (draft,) = drafts(text, directory)
    assert draft.files == tuple(directory / name for name in ("run.sh", "data.txt", "more.txt"))


def test_yaml_may_hold_several_descriptions(tmp_path: Path) -> None:
    found = drafts("- Executable: a\n- Executable: b\n", tmp_path)
    assert [draft.content["Executable"] for draft in found] == ["a", "b"]
    assert [draft.text for draft in found] == [None, None]


def test_parameters_are_names_with_values() -> None:
    assert job_submit.parse_parameters(["A=1,2", "B=x"]) == {"A": ["1", "2"], "B": ["x"]}


@pytest.mark.parametrize("words", [["A"], ["=1"], ["A="], ["A=1", "A=2"]])
def test_parameters_that_make_no_sense_are_refused(words: list[str]) -> None:
    with pytest.raises(WrongUsage):
        job_submit.parse_parameters(words)


def test_several_parameters_give_each_combination(directory: Path) -> None:
    (draft,) = drafts(JDL, directory)
    varied = job_submit.add_parameters(draft, {"year": ["2015", "2016"], "seed": ["1", "2", "3"]})
    assert varied.jobs == 6
    assert varied.content["Parameters.year"] == ["2015"] * 3 + ["2016"] * 3
    assert varied.content["Parameters.seed"] == ["1", "2", "3"] * 2


def test_a_job_that_has_parameters_already_is_not_varied(tmp_path: Path) -> None:
    (draft,) = drafts("Executable: a\nParameters: 3\n", tmp_path)
    with pytest.raises(WrongUsage, match="Parameters of its own"):
        job_submit.add_parameters(draft, {"A": ["1"]})


def test_copies_go_out_a_thousand_at_a_time(tmp_path: Path) -> None:
    found = drafts("Executable: a\n", tmp_path)
    assert [sum(draft.jobs for draft in request) for request in job_submit.build_requests(found, 2500)] == [
        1000,
        1000,
        500,
    ]


def test_texts_that_take_long_to_parse_go_out_in_several_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "DESCRIBED_TOKENS", 20)
    found = [draft for name in "abcdef" for draft in drafts(f"Executable: {name}\nStdOutput: o\n", tmp_path)]
    assert [len(request) for request in job_submit.build_requests(found, 1)] == [3, 3]
    assert [len(request) for request in job_submit.build_requests(found[:1], 50)] == [50], "parsed once"


def test_a_request_is_no_longer_than_the_service_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BODY", 6_000)
    [short, long] = [drafts(f"Executable: a\nArguments: {'x' * size}\n", tmp_path)[0] for size in (1, 2_000)]
    for found, count in (([short, long], 9), ([long], 9)):
        requests = [*job_submit.build_requests(found, count)]
        assert sum(map(len, requests)) == count * len(found)
        for request in requests:
            assert len(json.dumps({"jdls": [each.text for each in request]})) <= 6_000
    [members] = drafts(f"Executable: a\nParameters: {['y' * 500] * 20}\n", tmp_path)
    pieces = [each for [each] in job_submit.build_requests([members], 1)]
    assert sum(each.jobs for each in pieces) == 20
    for each in pieces:
        assert len(json.dumps({"jobs": [job_submit.description_as_json(each.content)]})) <= 6_000


def test_a_request_has_no_more_values_than_the_service_reads(tmp_path: Path) -> None:
    digits = job_submit.make_draft({"Executable": "a", "Values": [1] * 3_000}, directory=tmp_path)
    [text] = drafts("Executable: '" + "," * 99 + "'\n", tmp_path)
    for draft, field in ((digits, "jobs"), (text, "jdls")):
        requests = [*job_submit.build_requests([draft], 1_000)]
        assert sum(map(len, requests)) == 1_000
        for request in requests:
            sources = [each.text or job_submit.description_as_json(each.content) for each in request]
            routing.check_size(json.dumps({field: sources}, separators=(",", ":")).encode())


def test_values_of_different_jobs_go_out_in_several_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "RECORD_VALUES", 30)
    found = [
        draft
        for name in "abcdef"
        for draft in drafts(f"Executable: {name}\nTag: {[*'12345678']}\n", tmp_path)
    ]
    found = [replace(draft, text=None) for draft in found]
    requests = [*job_submit.build_requests(found, 1)]
    assert [len(request) for request in requests] == [3, 3]
    for request in requests:
        sources = [job_submit.description_as_json(each.content) for each in request]
        assert checking.check_sources(grid(), ANN, sources)
    with pytest.raises(InvalidJob, match="36 values in different jobs are too many"):
        checking.check_sources(grid(), ANN, [job_submit.description_as_json(each.content) for each in found])


def test_expressions_of_many_jobs_go_out_in_several_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "EXPRESSION_TOKENS", 20)
    text = "Executable: a\nRequirements: other.A > {}\n"  # five words and signs, seven with place and value
    found = [draft for number in range(6) for draft in drafts(text.format(number), tmp_path)]
    assert [len(request) for request in job_submit.build_requests(found, 1)] == [4, 2]
    [draft] = drafts(text.format("%s") + "Parameters: 6\n", tmp_path)
    requests = [*job_submit.build_requests([draft], 1)]
    assert [sum(each.jobs for each in request) for request in requests] == [2, 2, 2]
    for request in requests:
        sources = [job_submit.description_as_json(each.content) for each in request]
        assert checking.check_sources(grid(), ANN, sources)


def test_members_with_long_expressions_are_split_from_those_with_short_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "EXPRESSION_TOKENS", 40)
    values = ["true"] * 6 + ["other.A > 1 && other.B > 2 && other.C > 3"] * 2
    [draft] = drafts(f"Executable: a\nRequirements: '%s'\nParameters: {values}\n", tmp_path)
    requests = [*job_submit.build_requests([draft], 1)]
    pieces = [each.content["Parameters"] for request in requests for each in request]
    assert pieces == [["true"] * 5, ["true", *values[-1:]], values[-1:]]
    for request in requests:
        sources = [job_submit.description_as_json(each.content) for each in request]
        assert checking.check_sources(grid(), ANN, sources)


def test_values_of_many_members_go_out_in_several_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "FILLED_VALUES", 20)
    [draft] = drafts("Executable: a\nTags: [a, '%s']\nArguments: x\nParameters: 8\n", tmp_path)
    assert [sum(each.jobs for each in some) for some in job_submit.build_requests([draft], 1)] == [4, 4]


def test_jobs_with_different_sandboxes_do_not_share_a_request(directory: Path) -> None:
    found = drafts(JDL, directory) + drafts("Executable: a\n", directory)
    assert [request[0].sandbox[0] for request in job_submit.build_requests(found, 1)] == [
        (directory / "run.sh",),
        (),
    ]


def test_equal_files_make_equal_archives(directory: Path) -> None:
    file = directory / "run.sh"
    with job_submit.pack_sandbox([file]) as archive:
        first = archive.read()
    file.touch()
    with job_submit.pack_sandbox([file]) as archive:
        assert archive.read() == first


def test_the_archive_holds_files_by_their_base_names_executable_as_they_were(directory: Path) -> None:
    with job_submit.pack_sandbox([directory / "run.sh"]) as stream, tarfile.open(fileobj=stream) as archive:
        (member,) = archive.getmembers()
    assert (member.name, member.mode) == ("run.sh", 0o755)


def test_links_in_a_sandbox_are_followed(directory: Path) -> None:
    (directory / "link").symlink_to(directory / "run.sh")
    with job_submit.pack_sandbox([directory / "link"]) as stream, tarfile.open(fileobj=stream) as archive:
        (member,) = archive.getmembers()
    assert member.isfile()


def test_an_expression_travels_as_its_text(tmp_path: Path) -> None:
    (draft,) = drafts('[ Executable = "a"; Requirements = other.Memory > 3; ]', tmp_path)
    sent = job_submit.description_as_json(draft.content)
    assert "Memory" in str(sent["Requirements"])


def test_the_sandbox_belongs_to_the_vo_that_the_description_names(directory: Path) -> None:
    (draft,) = drafts("Executable: x\nVirtualOrganization: dune\nInputSandbox: run.sh\n", directory)
    assert draft.sandbox == ((directory / "run.sh",), "dune")


def test_a_long_parametric_description_goes_out_in_pieces_that_make_the_same_jobs(tmp_path: Path) -> None:
    text = "Executable: a\nArguments: '%n %s %(A)s'\nParameters: 12000\nParameterStart: 7\nParameters.A: "
    [draft] = drafts(text + str(list(range(12_000))), tmp_path)
    requests = list(job_submit.build_requests([draft], 1))
    assert [sum(each.jobs for each in request) for request in requests] == [5000, 5000, 2000]
    pieces = [each.content for request in requests for each in request]
    whole, *parts = map(parametric.split_description, (draft.content, *pieces))
    members = [values for each in parts for values in parametric.expand_parameters(each, most=5000)]
    assert members == parametric.expand_parameters(whole, most=12_000)
    assert {tuple(each.template.items()) for each in parts} == {tuple(whole.template.items())}


@pytest.mark.parametrize("error", [ServiceAway("it is away"), KeyboardInterrupt()], ids=str)
def test_jobs_that_are_submitted_before_an_error_are_named(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([[5, 6], error])

    def post(*_: object, **_more: object) -> list[int]:
        answer = next(answers)
        if isinstance(answer, list):
            return answer
        raise answer

    monkeypatch.setattr(job_submit, "_post", post)
    two = drafts("- {Executable: a}\n- {Executable: b}\n", tmp_path)
    with ServiceClient("http://127.0.0.1:9", "x") as client, pytest.raises(type(error)):
        job_submit._send_visibly(client, [two, two])
    assert capsys.readouterr().err == "pilotage: 2 jobs submitted before: 5-6\n"
