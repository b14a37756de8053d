"""`pilotage usage records`: messages that APEL's server takes, with the numbers of the accounting."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from pilotage.plugins.formats import apel
from pilotage.plugins.formats.apel import UsedSlot
from tests.support.commands import Run, run, send_to
from tests.support.factories import accounted_jobs
from tests.support.service import Service, running

__all__ = ["run"]

_JOB = """
Site=text! SubmitHost=text MachineName=text Queue=text LocalJobId=text! LocalUserId=text GlobalUserName=text
FQAN=text VO=text VOGroup=text VORole=text WallDuration=int! CpuDuration=int! Processors=int NodeCount=int
StartTime=time! EndTime=time! InfrastructureDescription=text InfrastructureType=text MemoryReal=int
MemoryVirtual=int ServiceLevelType=benchmark ServiceLevel=float
"""
_SUMMARY = """
Site=text! Month=month! Year=int! GlobalUserName=text VO=text VOGroup=text VORole=text SubmitHost=text
InfrastructureType=text InfrastructureDescription=text ServiceLevelType=benchmark ServiceLevel=float
NodeCount=int Processors=int EarliestEndTime=time LatestEndTime=time WallDuration=int! CpuDuration=int!
NumberOfJobs=int!
"""
_NORMALISED = """
Site=text! Month=month! Year=int! GlobalUserName=text VO=text VOGroup=text VORole=text SubmitHost=text
Infrastructure=text InfrastructureDescription=text NodeCount=int Processors=int EarliestEndTime=time
LatestEndTime=time WallDuration=int! CpuDuration=int! NormalisedWallDuration=by_benchmark!
NormalisedCpuDuration=by_benchmark! NumberOfJobs=int!
"""
#: By header: the form of each field, with `!` where it is required. Written from APEL's own records: what its
#: loader takes for a message, refuses as unknown, or as null in a field that is required.
SCHEMA: Mapping[str, Mapping[str, str]] = {
    header: dict(field.split("=") for field in fields.split())
    for header, fields in (
        ("APEL-individual-job-message: v0.3", _JOB),
        ("APEL-summary-job-message: v0.2", _SUMMARY),
        ("APEL-normalised-summary-message: v0.4", _NORMALISED),
    )
}
FORMS = {
    "text": re.compile(r"(?!null$|none$)\S.*", re.IGNORECASE),
    "int": re.compile(r"[0-9]{1,18}"),
    "float": re.compile(r"(?!0+\.0+$)[0-9]+\.[0-9]{1,3}"),
    "time": re.compile(r"[0-9]{10}"),
    "month": re.compile(r"[1-9]|1[0-2]"),
    "benchmark": re.compile(r"HEPScore23"),
    "by_benchmark": re.compile(r"\{HEPScore23: [0-9]+\}"),
}
TREE = """
Resources: {Sites: {LCG.A.org: {VO: [cms, dune], CEs: {ce1: {POWERQueues: {long: {CPUTime: 100000}}}}}}}
Registry:
  VO: {cms: {}, dune: {}}
  Users: {ada: {DN: [/C=ch/O=cern/CN=ada]}}
"""
MONTH = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
ASK = ("usage", "records", "--site", "LCG.A.org", "--month", "2026-03")
USED = UsedSlot(
    job="1.1",
    vo="cms",
    name="ada",
    ce="ce1",
    queue="long",
    processors=8,
    started=MONTH,
    ended=MONTH + timedelta(hours=1),
    wall_seconds=3600.0,
    cpu_seconds=20_000.4,
    peak_ram_mb=2,
    hepscore23=12.5,
)


def read_message(text: str) -> tuple[str, list[dict[str, str]]]:
    """The header and the records of a message, each checked by the schema."""
    header, *lines = text.splitlines()
    fields, found = SCHEMA[header], [dict[str, str]()]
    for line in lines:
        if line == "%%":
            found.append({})
            continue
        name, value = line.split(": ", 1)
        assert FORMS[fields[name].strip("!")].fullmatch(value), line
        found[-1][name] = value
    assert found.pop() == {}, "a message ends with %%"
    for record in found:
        assert {name for name, kind in fields.items() if kind.endswith("!")} <= record.keys()
        _check_times(record)
        # A benchmark without its value, or the other way, is refused by the loader.
        assert ("ServiceLevel" in record) == ("ServiceLevelType" in record)
    assert header == text.split("\n", 1)[0]
    assert all(line.isascii() or line.startswith("GlobalUserName: ") for line in lines)
    return header, found


def _check_times(record: Mapping[str, str]) -> None:
    """Check times of a record as APEL's loader does: jobs begin before they end, and end in its month."""
    if "StartTime" in record:
        start, end = int(record["StartTime"]), int(record["EndTime"])
        assert 0 < start <= end < (datetime.now(UTC) + timedelta(days=2)).timestamp()
        assert int(record["WallDuration"]) <= end - start + 1
        return
    year, month = int(record["Year"]), int(record["Month"])
    begin = datetime(year, month, 1, tzinfo=UTC)
    next_month = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    earliest, latest = int(record["EarliestEndTime"]), int(record["LatestEndTime"])
    assert begin.timestamp() <= earliest <= latest <= next_month.timestamp()
    assert int(record["NumberOfJobs"]) > 0


@pytest.fixture
def service(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with running(engine, tmp_path, TREE.replace("POWER", "HEPScore23: 10.5, ")) as service:
        send_to(service, tmp_path, monkeypatch)
        accounted_jobs.a_day(engine, MONTH)
        yield service


def read_records(run: Run, *arguments: object) -> Sequence[Mapping[str, str]]:
    status, out, err = run(*ASK, *arguments)
    assert (status, err) == (0, "")
    return read_message(out)[1]


def test_each_job_is_a_record_by_default(service: Service, run: Run) -> None:
    first, _, third = read_records(run)
    assert first["GlobalUserName"] == "/C=ch/O=cern/CN=ada"
    assert (first["WallDuration"], first["CpuDuration"], first["Processors"]) == ("3600", "1800", "1")
    assert (first["ServiceLevelType"], first["ServiceLevel"]) == ("HEPScore23", "10.500")
    assert int(first["EndTime"]) - int(first["StartTime"]) == 3600
    assert (third["VO"], third["GlobalUserName"], third["SubmitHost"]) == ("dune", "dora", "ce1")


def test_sums_are_those_of_the_accounting(service: Service, run: Run) -> None:
    query = {"by": "vo", "from": "2026-03-01", "to": "2026-04-01", "site": "LCG.A.org"}
    accounted = service.operator().get("/api/v1/accounting", params=query).json()["rows"]
    expected = {row["vo"]: (row["wall_seconds"], row["cpu_seconds"], row["jobs"]) for row in accounted}
    assert set(expected) == {"cms", "dune"}
    for name in ("apel-summary", "apel-normalised"):
        found = read_records(run, "--format", name)
        assert {
            row["VO"]: tuple(int(row[each]) for each in ("WallDuration", "CpuDuration", "NumberOfJobs"))
            for row in found
        } == expected
        assert {(row["Month"], row["Year"]) for row in found} == {("3", "2026")}
    assert {row["VO"]: row["NormalisedWallDuration"] for row in found} == {
        "cms": "{HEPScore23: 75600}",
        "dune": "{HEPScore23: 75600}",
    }


def test_names_are_withheld_on_request_and_where_the_token_does_not_cover_them(
    service: Service, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {each["GlobalUserName"] for each in read_records(run, "--withhold-names")} == {"withheld"}
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token("site_admin", vo="dune", site="LCG.A.org"))
    found = read_records(run)
    assert [each["GlobalUserName"] for each in found] == ["withheld", "withheld", "dora"]


def test_another_site_is_refused_and_an_unknown_one(
    service: Service, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = run("usage", "records", "--site", "LCG.A.ogr", "--month", "2026-03")
    assert (status, out) == (1, "")
    assert "LCG.A.org" in err
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token("site_admin", vo="dune", site="LCG.B.org"))
    status, out, err = run(*ASK)
    assert (status, out) == (1, "")
    assert "the token is for LCG.B.org" in err


@pytest.mark.parametrize("month", ["2026-13", "03-2026", "2026-3"])
def test_a_month_that_is_none_is_refused(service: Service, run: Run, month: str) -> None:
    status, _, err = run("usage", "records", "--site", "LCG.A.org", "--month", month)
    assert status == 2
    assert "--month" in err


def test_a_month_without_jobs_is_told(service: Service, run: Run) -> None:
    status, out, err = run("usage", "records", "--site", "LCG.A.org", "--month", "2019-03")
    assert (status, out) == (0, "")
    assert "no attempt ended at LCG.A.org in 2019-03: there is nothing to send" in err


def test_messages_are_stored_as_ssm_reads_them(service: Service, run: Run, tmp_path: Path) -> None:
    status, out, _ = run(*ASK, "--outgoing", tmp_path / "outgoing", "--gocdb-name", "CERN-PROD")
    assert (status, out) == (0, f"3 attempts: 1 message in {tmp_path}/outgoing\n")
    [made] = (tmp_path / "outgoing").glob("*/*")
    assert re.fullmatch("[0-9a-f]{8}/[0-9a-f]{14}", str(made.relative_to(tmp_path / "outgoing")))
    assert {each["Site"] for each in read_message(made.read_text())[1]} == {"CERN-PROD"}
    assert run(*ASK, "--outgoing", tmp_path / "plain", "--plain")[0] == 0
    [plain] = (tmp_path / "plain").iterdir()
    assert read_message(plain.read_text())[0] == "APEL-individual-job-message: v0.3"


def test_messages_of_one_moment_have_names_of_their_own(tmp_path: Path) -> None:
    made = [apel.store_in_queue(tmp_path, str(number), at=1_790_000_000.5) for number in range(40)]
    assert sorted(int(each.read_text()) for each in tmp_path.glob("*/*")) == list(range(40))
    assert all(re.fullmatch("[0-9a-f]{14}", each.name) for each in made)


def test_a_message_has_at_most_a_thousand_records() -> None:
    messages = list(apel.write_messages("apel", site="S", used=[USED] * 1001))
    assert [len(read_message(each)[1]) for each in messages] == [1000, 1]


def test_sums_are_apart_by_vo_user_ce_processors_and_benchmark() -> None:
    used = [
        USED,
        USED,
        replace(USED, vo="dune"),
        replace(USED, name="bob"),
        replace(USED, ce="ce2"),
        replace(USED, processors=1),
        replace(USED, hepscore23=20.0),
    ]
    [summary] = apel.write_messages("apel-summary", site="S", used=used)
    assert [each["NumberOfJobs"] for each in read_message(summary)[1]] == ["2", "1", "1", "1", "1", "1"]
    [normalised] = apel.write_messages("apel-normalised", site="S", used=used)
    first = read_message(normalised)[1][0]
    assert (first["NumberOfJobs"], first["Processors"]) == ("3", "8")
    assert first["NormalisedWallDuration"] == f"{{HEPScore23: {3600 * 45}}}"


def test_the_schema_refuses_what_the_loader_of_apel_refuses() -> None:
    """So that the checks of the other tests mean something."""
    job, summary, normalised = (
        next(iter(apel.write_messages(name, site="S", used=[USED])))
        for name in ("apel", "apel-summary", "apel-normalised")
    )
    for message in (job, summary, normalised):
        read_message(message)
    for message, old, new in (
        (job, "APEL-individual-job-message: v0.3", "APEL-individual-job-message: v0.2"),
        (job, "LocalJobId: 1.1\n", ""),
        (job, "LocalJobId: 1.1", "LocalJobId: None"),
        (job, "WallDuration: 3600", "WallDuration: 3600.0"),
        (job, "Processors: 8", "Cores: 8"),
        (job, "ServiceLevelType: HEPScore23\n", ""),
        (job, "ServiceLevel: 12.500", "ServiceLevel: 0.000"),
        (job, f"StartTime: {int(MONTH.timestamp())}", f"StartTime: {int(MONTH.timestamp()) + 7200}"),
        (job, "%%\n", ""),
        (summary, "Month: 3", "Month: 13"),
        (summary, "Month: 3", "Month: 4"),
        (summary, "NumberOfJobs: 1", "NumberOfJobs: 0"),
        (normalised, "{HEPScore23: 45000}", "45000"),
        (normalised, "Infrastructure: grid", "InfrastructureType: grid"),
    ):
        assert old in message
        with pytest.raises((AssertionError, KeyError)):
            read_message(message.replace(old, new))


@pytest.mark.parametrize("month", [1, 12])
def test_a_record_of_the_last_second_of_a_month_is_of_that_month(month: int) -> None:
    end = datetime(2025, month, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    used = [replace(USED, started=end - timedelta(hours=1), ended=end)]
    for name in ("apel-summary", "apel-normalised"):
        [message] = apel.write_messages(name, site="S", used=used)
        [record] = read_message(message)[1]
        assert (record["Month"], record["Year"]) == (str(month), "2025")


def test_a_name_cannot_write_a_line_of_its_own() -> None:
    [message] = apel.write_messages("apel", site="S", used=[replace(USED, name="eve\nVO: atlas\r%%")])
    [record] = read_message(message)[1]
    assert (record["VO"], record["GlobalUserName"]) == ("cms", "eve VO: atlas %%")


def test_queues_without_a_benchmark_are_named(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    with running(engine, tmp_path, TREE.replace("POWER", "")) as service:
        send_to(service, tmp_path, monkeypatch)
        accounted_jobs.a_day(engine, MONTH)
        status, out, err = run(*ASK)
        assert (status, out) == (1, "")
        assert "no HEPScore23 is stated for ce1/long" in err
        assert {each["ServiceLevel"] for each in read_records(run, "--hepscore23", 9)} == {"9.000"}


@pytest.mark.parametrize("gone", [{"ce1:": "ce2:"}, {"long:": "short:"}])
def test_a_queue_that_is_gone_has_the_benchmark_of_its_site(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, gone: Mapping[str, str]
) -> None:
    [(one, other)] = gone.items()
    of_site = TREE.replace("POWER", "").replace("{VO: [cms, dune]", "{HEPScore23: 7.5, VO: [cms, dune]")
    with running(engine, tmp_path, of_site.replace(one, other)) as service:
        send_to(service, tmp_path, monkeypatch)
        accounted_jobs.a_day(engine, MONTH)
        assert {each["ServiceLevel"] for each in read_records(run)} == {"7.500"}


def test_deleted_jobs_are_missed(service: Service, run: Run) -> None:
    with service.engine.begin() as conn:
        conn.exec_driver_sql("DELETE FROM jobs WHERE owner = 'dora'")
    status, out, err = run(*ASK)
    assert status == 0
    assert len(read_message(out)[1]) == 2
    assert "accounting counted 1 attempt more at LCG.A.org in 2026-03: their jobs are deleted" in err
