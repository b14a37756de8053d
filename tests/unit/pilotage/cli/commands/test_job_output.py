import gzip
import io
import tarfile
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pilotage.cli.commands import job
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import CommandRefused
from pilotage.cli.options import JobFilters
from pilotage.client import outputs
from pilotage.client.api import ApiError
from pilotage.client.outputs import refuse_taken, unpack_output


class Outputs:
    """A service whose output archives are given."""

    def __init__(self, *members: tuple[tarfile.TarInfo, bytes]) -> None:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for member, content in members:
                tar.addfile(member, io.BytesIO(content))
        self._archive = gzip.compress(stream.getvalue())

    def output(self, _job_id: int, stream: io.BytesIO) -> None:
        stream.write(self._archive)


def file(name: str, size: int = 3, **about: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = size
    for key, value in about.items():
        setattr(member, key, value)
    return member, b"x" * size


def unpack(archive: Outputs, target: Path, most: int = 1 << 20) -> list[Path]:
    return unpack_output(archive, 7, target, most=most)  # type: ignore[arg-type]


def unsafe(kind: bytes, name: str, link: str) -> tuple[tarfile.TarInfo, bytes]:
    return file(name, 0, type=kind, linkname=link)


def test_an_output_is_unpacked_in_its_order(tmp_path: Path):
    files = unpack(Outputs(file("b"), file("d/c"), file("a")), tmp_path / "7")
    assert files == [tmp_path / "7" / name for name in ("b", "d/c", "a")]
    assert all(path.read_bytes() == b"xxx" for path in files)
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


def test_an_output_goes_into_an_empty_directory(tmp_path: Path):
    (tmp_path / "7").mkdir()
    assert unpack(Outputs(file("a")), tmp_path / "7") == [tmp_path / "7" / "a"]


@pytest.mark.parametrize("taken", ["a file", "a directory with a file", "a link to an empty directory"])
def test_nothing_that_is_there_already_is_overwritten(taken: str, tmp_path: Path):
    target, elsewhere = tmp_path / "7", tmp_path / "elsewhere"
    if taken == "a directory with a file":
        target.mkdir()
    if taken == "a link to an empty directory":
        elsewhere.mkdir()
        target.symlink_to(elsewhere)
    else:
        (target / "a" if target.is_dir() else target).write_text("mine")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(
        CommandRefused, match=r"job 7: .*/7 exists already, and nothing is overwritten: .*--directory"
    ):
        refuse_taken(7, target)
    with pytest.raises(OSError, match="irectory"):  # it came between the look and the end of the fetch
        unpack(Outputs(file("a")), target)
    assert sorted(tmp_path.rglob("*")) == before
    assert elsewhere.exists() or (target / "a" if target.is_dir() else target).read_text() == "mine"


class SomeOutputs(Outputs):
    """A service that has no output of job 8, does not know job 9, and of job 10 has one that is refused."""

    def output(self, job_id: int, stream: io.BytesIO) -> None:
        if job_id in (8, 9):
            code = "blob_not_found" if job_id == 8 else "job_not_found"
            raise ApiError(f"{job_id} does not exist", status=404, code=code, details={})
        if job_id == 10:
            stream.write(b"no archive")
        else:
            super().output(job_id, stream)

    def job(self, _job_id: int) -> dict[str, str]:
        return {"status": "Waiting", "minor_status": "No eligible queue"}


def test_a_job_without_an_output_stops_no_other(tmp_path: Path):
    service: Any = SomeOutputs(file("a"))
    found = outputs.fetch_all(service, (7, 8, 9, 10, 11), tmp_path, most=1000)
    assert found.files == {7: [tmp_path / "7" / "a"], 11: [tmp_path / "11" / "a"]}
    refused = list(found.refused.values())
    waits = "job 8: has no output yet: it is Waiting (No eligible queue); "
    waits += "`pilotage job wait 8` waits until it has ended"
    assert refused[:2] == [waits, "job 9: 9 does not exist"]
    assert refused[2].startswith("job 10: its output is not a readable tar archive")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["11", "7"]
    with pytest.raises(ApiError, match="9 does not exist"):
        outputs.fetch_all(service, [9], tmp_path, most=1000)


def test_jobs_whose_directories_have_files_are_skipped_if_wanted(tmp_path: Path):
    service: Any = Outputs(file("a"))
    first = outputs.fetch_all(service, [7, 8], tmp_path, most=1000)
    assert sorted(first.files) == [7, 8]
    with pytest.raises(CommandRefused, match=r"job 7: .*--skip-existing"):
        outputs.fetch_all(service, [7, 8, 9], tmp_path, most=1000)
    again = outputs.fetch_all(service, [7, 8, 9], tmp_path, most=1000, skip_existing=True)
    assert (again.skipped, list(again.files)) == ([7, 8], [9])


def test_outputs_are_fetched_at_the_same_time(tmp_path: Path):
    both = threading.Barrier(2, timeout=300)

    class Slow(Outputs):
        """A service that answers when two have asked."""

        def output(self, job_id: int, stream: io.BytesIO) -> None:
            both.wait()
            super().output(job_id, stream)

    service: Any = Slow(file("a"))
    found = outputs.fetch_all(service, range(1, 5), tmp_path, most=1000, parallel=2)
    assert sorted(found.files) == [1, 2, 3, 4]


class Group(Outputs):
    """A service with a group of three jobs, of which two have ended."""

    def jobs(self, filters: Mapping[str, str], **_: object) -> dict[str, Any]:
        assert filters["job_group"] == "scan"
        assert "Done" in filters["status"].split(",")
        assert "Running" not in filters["status"]
        return {"jobs": [{"job_id": 8}, {"job_id": 7}], "next": None}

    def summary(self, **_: object) -> list[dict[str, Any]]:
        return [{"status": "Done", "count": 2}, {"status": "Running", "count": 1}]


def test_the_outputs_of_a_group_are_those_of_its_ended_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(ServiceOptions, "connect", lambda _: nullcontext(Group(file("a"))))
    for skip_existing in (False, True):
        job.fetch_output(
            filters=JobFilters(job_group="scan"),  # type: ignore[call-arg]  # made of the table of fields
            directory=tmp_path,
            skip_existing=skip_existing,
            service=ServiceOptions(),
        )
        printed = capsys.readouterr()
        assert "1 job has not ended: no output yet" in printed.err
        assert ("2 jobs skipped: 7-8" in printed.err) is skip_existing
        assert (str(tmp_path / "7" / "a") in printed.out) is not skip_existing


def test_an_output_that_would_fill_the_disk_is_refused(tmp_path: Path):
    with pytest.raises(
        CommandRefused, match=r"job 7: its output has more bytes .*\(1000\); --most GB allows more"
    ):
        unpack(Outputs(file("a", 600), file("b", 600)), tmp_path / "7", most=1000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "member",
    [
        file("../out"),
        file("/etc/passwd"),
        unsafe(tarfile.SYMTYPE, "link", "../../etc"),
        unsafe(tarfile.SYMTYPE, "link", "inside"),
        unsafe(tarfile.LNKTYPE, "hard", "/etc/passwd"),
        unsafe(tarfile.LNKTYPE, "hard", "before"),
        unsafe(tarfile.CHRTYPE, "device", ""),
        unsafe(tarfile.FIFOTYPE, "pipe", ""),
    ],
)
def test_what_leaves_its_directory_or_is_no_file_is_refused(
    member: tuple[tarfile.TarInfo, bytes], tmp_path: Path
):
    with pytest.raises(CommandRefused, match="job 7"):
        unpack(Outputs(file("before"), member), tmp_path / "home" / "7")
    assert [each.name for each in tmp_path.rglob("*")] == ["home"]


def test_links_too_long_to_be_resolved_overwrite_no_file_of_the_user(tmp_path: Path):
    """The filters of `tarfile` before Python 3.11.13 resolve paths only as long as the system takes them."""
    victim = tmp_path / "home" / "authorized_keys"
    victim.parent.mkdir()
    victim.write_text("mine")
    deep, path, members = "d" * 247, "", []
    for step in "abcdefghijklmnop":
        members += [file(path + deep, 0, type=tarfile.DIRTYPE, mode=0o755)]
        members += [unsafe(tarfile.SYMTYPE, path + step, deep)]
        path += f"{deep}/"
    long = "/".join("abcdefghijklmnop") + "/" + "l" * 254
    members += [
        unsafe(tarfile.SYMTYPE, long, "../" * 16),
        unsafe(tarfile.SYMTYPE, "escape", f"{long}/../home"),
        unsafe(tarfile.LNKTYPE, "keys", "escape/authorized_keys"),
        file("keys", 3),
    ]
    with pytest.raises(CommandRefused, match="job 7"):
        unpack(Outputs(*members), tmp_path / "7")
    assert victim.read_text() == "mine"


def test_a_name_that_is_no_text_is_shown_all_the_same(tmp_path: Path):
    [path] = unpack(Outputs(file("log-\udcff")), tmp_path / "7")
    assert path.exists()
    assert job._printable_name(path).endswith(r"/log-\xff")
