"""A gateway's talk with a real service: work, leases, throttles, deliveries, and what may go wrong.

How grid jobs are materialised is not looked at: they stay as they came, or the book says that they ended.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cs_config.options import bounds
from cs_config.options.options import VoOptions
from pilotage.cli.processes.token_file import TokenFile
from pilotage.fabric.batch.batch_system import BatchJob, SubmissionRefused
from pilotage.fabric.gateway import leases
from pilotage.fabric.gateway.gateway import Gateway
from pilotage.fabric.manager.grid_job import LocalJob, LocalState, ManagerPhase
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.service.heartbeat import elapsed_time
from pilotage.fabric.pilot.service.service_client import Work
from pilotage.fabric.pilot.service.transport import Away, Refused, TokenNotAccepted
from pilotage.service.services import utc_now
from requirements.nodes import lrms_vocabulary
from tests.support.commands import Run, run, send_to
from tests.support.gateway import QUEUE, SITE, Ground, end, phases
from tests.support.service import Service

__all__ = ["run"]

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms]
      CEs:
        ce1:
          CPUTime: 100000
          MaxRAM: 4000
          Queues: {long: {}, short: {}}
Registry:
  VO: {cms: {}}
  Groups:
    cms_user: {VO: cms}
"""
LEVEL0 = "      Throttle: {Policy: level0, MaxSubmittingJobs: 2}\n      CEs:"
LEVEL1 = "      Throttle: {Policy: level1, MaxSubmittingAndOutputGatheringJobs: 2}\n      CEs:"
DONE = Report("Done", "Execution Complete", "all 4 local jobs are done", 0)
PARTIAL = Report("Failed", "Application Finished With Errors", "3 of 4 local jobs are done", 1)


pytestmark = pytest.mark.config(CONFIG)


@pytest.fixture
def ground(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(service, tmp_path / "gateway", monkeypatch)


def archive(directory: Path) -> Path:
    path = directory / "output.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("stdout.1")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"hi\n"))
    return path


def talk(gateway: Gateway) -> str:
    summary = gateway.talk(utc_now())
    assert not summary.away, summary
    return str(summary)


@contextmanager
def begun(ground: Ground) -> Iterator[tuple[Gateway, int]]:
    """A gateway that has taken the one job."""
    [job_id] = ground.submit()
    with ground.gateway() as gateway:
        talk(gateway)
        yield gateway, job_id


def test_grid_jobs_come_up_to_the_limit_of_the_queue_and_run(ground: Ground) -> None:
    ground.submit(5)
    with ground.gateway() as gateway:
        assert "grid jobs: 3 submitting" in talk(gateway)
        assert "3 taken" not in talk(gateway)
    assert ground.statuses() == {"Running": 3, "Waiting": 2}


def test_only_jobs_with_a_handler_come_and_those_without_a_type_are_generic(ground: Ground) -> None:
    [other] = ground.submit(JobType="Merge")
    [typed] = ground.submit(JobType="MonteCarlo", Events=10)
    [plain] = ground.submit(JobType=None)
    with ground.gateway() as gateway:
        talk(gateway)
        types = {each.taken.job_id: each.taken.description["JobType"] for each in gateway.manager.grid_jobs()}
    assert types == {typed: "montecarlo", plain: "generic"}
    assert ground.job(other)["status"] == "Waiting"


def test_a_pulled_grid_job_has_its_vo_and_its_owner(ground: Ground) -> None:
    [job_id] = ground.submit()
    with ground.gateway() as gateway:
        gateway.pulling.languages = {"host": (lrms_vocabulary.SLURM,)}
        gateway.talk(utc_now())
        [entry] = gateway.manager.grid_jobs()
    stored = ground.job(job_id)
    assert (entry.taken.vo, entry.taken.owner) == (stored["vo"], stored["owner"]) == ("cms", "ada")


def test_a_job_with_flags_that_its_batch_system_does_not_have_is_given_back(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = ground.submit()
    with ground.gateway() as gateway:
        service = gateway.pulling.service
        ask = service.request_job

        def forge(*args: object, **more: object) -> Work:
            work = ask(*args, **more)  # type: ignore[arg-type]
            forged = tuple(replace(each, flags=("--output=/etc/passwd",)) for each in work.matches)
            return replace(work, matches=forged)

        monkeypatch.setattr(service, "request_job", forge)
        assert "'--output=/etc/passwd' of the service are refused" in str(
            gateway.talk(utc_now()).list_problems()
        )
        assert not gateway.manager.grid_jobs()
        assert not gateway.manager.journal.requests
    assert ground.job(job)["status"] == "Waiting"


def test_a_wrong_vocabulary_costs_jobs_with_flags_their_place_and_nothing_else(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    flagged, plain = ground.submit(2)
    problems = []
    for _ in range(bounds.RELEASES + 1):  # as many starts of the gateway
        with ground.gateway() as gateway:
            gateway.pulling.languages = {"host": (lrms_vocabulary.SLURM,)}
            service = gateway.pulling.service
            ask = service.request_job

            def forge(offer: Mapping[str, object], ask: Callable[..., Work] = ask, **more: object) -> Work:
                if not offer.get("SubmitFlags"):
                    return ask({**offer, "JobID": plain}, **more)
                work = ask({**offer, "JobID": flagged}, **more)
                return replace(
                    work, matches=tuple(replace(each, flags=("--output=x",)) for each in work.matches)
                )

            monkeypatch.setattr(service, "request_job", forge)
            for _ in range(2):
                problems += gateway.talk(utc_now()).list_problems()
            assert [each.taken.job_id for each in gateway.manager.grid_jobs()] == [plain]
    assert len(problems) == bounds.RELEASES + 1
    assert "correct Forwarding/Vocabulary" in problems[0]
    assert ground.job(flagged)["status"] == "Waiting"


def test_a_request_that_is_repeated_after_a_restart_asks_for_flags_as_it_did(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job would else run without its flags, where the system has no flags any more."""
    ground.submit()
    asked: list[tuple[object, object]] = []
    for languages in ({"host": (lrms_vocabulary.SLURM,)}, {}, {}):
        with ground.gateway() as gateway:
            gateway.pulling.languages = languages
            service = gateway.pulling.service
            ask = service.request_job

            def note(offer: Mapping[str, object], *, ask: Callable[..., Work] = ask, **more: object) -> Work:
                asked.append((more["request_id"], offer.get("SubmitFlags")))
                work = ask(offer, **more)
                if len(asked) == 1:
                    raise Away("the answer is lost")
                return work

            monkeypatch.setattr(service, "request_job", note)
            gateway.talk(utc_now())
    (first, flags), (again, flags_again), *later = asked
    assert (again, flags, flags_again) == (first, True, True)
    assert all(request_id != first and not flags for request_id, flags in later)


def refuse(_: object, job: BatchJob) -> str:
    raise SubmissionRefused(f"{job.stamp}: no such account")


def test_a_grid_job_that_the_batch_system_refuses_goes_back_and_no_more_come(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = ground.submit()
    with ground.gateway() as gateway:
        talk(gateway)
        monkeypatch.setattr(type(gateway.manager.context.systems["host"].system), "submit", refuse)
        for _ in range(4):
            gateway.manager.advance()
        assert gateway.leases.deliver() == 1
        assert ground.job(job_id)["reschedules"] == 1
        assert ground.job(job_id)["status"] in {"Rescheduled", "Received", "Checking", "Waiting"}
        entries = ground.operator.get(f"/api/v1/jobs/{job_id}/log").json()["log"]
        assert any("no such account" in (each["application"] or "") for each in entries)
        talk(gateway)
        assert not gateway.manager.grid_jobs()


def test_a_single_cycle_fails_if_the_batch_system_refuses_every_local_job(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = ground.submit()
    with ground.gateway() as gateway:
        with monkeypatch.context() as patched:
            patched.setattr(type(gateway.manager.context.systems["host"].system), "submit", refuse)
            refused = gateway.run_once(utc_now())
        again = gateway.run_once(utc_now())
    assert (refused.taken, refused.has_failed, refused.stuck) == (1, True, 1)
    assert (again.has_failed, again.stuck) == (False, 0)
    [problem] = refused.list_problems("cms")
    assert problem.startswith(f"job {job_id}: ")
    assert "no such account" in problem


def test_news_of_local_jobs_that_the_service_lacks_is_counted_as_updating(ground: Ground) -> None:
    ground.service.configure(CONFIG.replace("      CEs:", LEVEL0))
    ground.submit()
    with ground.gateway() as gateway:
        talk(gateway)
        [entry] = gateway.manager.journal.entries()
        local = LocalJob(key=entry.key, number=1, stamp="gate.1.1.1.1.b", was_submitted=True)
        planned = replace(entry, number=1)
        for state in (LocalState.WAITING, LocalState.RUNNING):
            changed = [replace(local, state=state)]
            gateway.manager.journal.write(entry.key, entry=planned, local_jobs=changed)
            assert ground.line is not None
            ground.line.refuses = "/heartbeat", Refused(503, "busy", "away, on purpose")
            assert "1 updating" in talk(gateway)
            advertised = ground.operator.get(f"/api/v1/sites/{SITE}").json()["throttles"][0]["advertisement"]
            assert (advertised["CurrentUpdatingJobs"], advertised["CurrentPollingJobs"]) == (1, 0)
            ground.line.refuses = None
            assert "1 polling" in talk(gateway)
            advertised = ground.operator.get(f"/api/v1/sites/{SITE}").json()["throttles"][0]["advertisement"]
            assert (advertised["CurrentUpdatingJobs"], advertised["CurrentPollingJobs"]) == (0, 1)


def test_a_report_of_local_jobs_without_an_answer_keeps_nothing_else_from_the_gateway(ground: Ground) -> None:
    with begun(ground) as (gateway, job_id):
        [entry] = gateway.manager.journal.entries()
        waits = LocalJob(key=entry.key, number=1, stamp="gate.1.1.1.1.b", was_submitted=True)
        gateway.manager.journal.write(entry.key, entry=replace(entry, number=1), local_jobs=[waits])
        ground.operator.post(f"/api/v1/jobs/{job_id}/kill").raise_for_status()
        assert ground.line is not None
        ground.line.refuses = "/local-jobs", Away("away, on purpose")
        summary = gateway.talk(utc_now())
        assert not summary.away
        own = [f"job {job_id}: its local jobs are not reported: away, on purpose"]
        assert (summary.list_problems(), summary.list_problems("CMS")) == (own, own)
        assert summary.list_problems("dune") == [], "another VO has no jobs of this one in its report"
        [killed] = gateway.manager.journal.entries()
        assert killed.cancelled
        assert ground.operator.get(f"/api/v1/jobs/{job_id}/local-jobs").json()["local_jobs"] == []


def test_each_local_job_is_told_with_state_tries_reference_and_times(
    ground: Ground, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = ground.submit()
    path = f"/api/v1/jobs/{job_id}/local-jobs"
    assert ground.operator.get(path).json() == {"job_id": job_id, "local_jobs": [], "next": None}
    send_to(ground.service, tmp_path, monkeypatch)
    with ground.gateway() as gateway:
        talk(gateway)
        journal = gateway.manager.journal
        [entry] = journal.entries()
        local = [LocalJob(key=entry.key, number=n, stamp=f"gate.1.1.{n}.1.b") for n in (1, 2, 3)]
        waits = replace(
            local[0], details={"Seed": 5}, state=LocalState.WAITING, reference="17", was_submitted=True
        )
        journal.write(entry.key, entry=replace(entry, number=3), local_jobs=[waits, *local[1:]])
        talk(gateway)
        rows = ground.operator.get(path).json()["local_jobs"]
        assert [(each["number"], each["state"], each["tries"]) for each in rows] == [
            (1, "waiting", 1),
            (2, "unsubmitted", 0),
            (3, "unsubmitted", 0),
        ]
        runs = replace(waits, state=LocalState.RUNNING)
        journal.write(entry.key, local_jobs=[runs])
        [kept, *_] = journal.local_jobs(entry.key)
        ground.log.clear()
        talk(gateway)
        talk(gateway)
        assert sum("local-jobs" in each for each in ground.log) == 1, "what did not change is not sent"
        broken = replace(kept, state=LocalState.FAILED, exit_code=3, message="no\0space")
        journal.write(entry.key, local_jobs=[broken])
        told = json.loads(run("gateway", "status", "--config", ground.file(), "--json")[1])
        assert told["grid_jobs"][0]["local_jobs"] == {"failed": 1, "unsubmitted": 2}
        assert "failed" in run("gateway", "status", "--config", ground.file(), "--job", job_id)[1]
    with ground.gateway() as gateway:  # another process reports all of them again
        talk(gateway)
        talk(gateway)
    page = ground.operator.get(path, params={"limit": 1}).json()
    [first] = page["local_jobs"]
    assert page["next"] == 1
    assert (first["state"], first["exit_code"], first["reference"]) == ("failed", 3, "17")
    assert first["details"] == {"Seed": 5}
    assert (first["message"], bool(first["started_at"]), bool(first["ended_at"])) == (
        "no\ufffdspace",
        True,
        True,
    )
    [only] = ground.operator.get(path, params={"state": "failed"}).json()["local_jobs"]
    assert only == first
    out = run("job", "show", job_id)[1]
    assert "17" in out
    assert "failed" in out
    assert ground.service.user(user="eve").get(path).status_code == 404


def test_only_the_holder_reports_local_jobs_and_only_of_an_open_attempt(ground: Ground) -> None:
    ground.submit()
    with ground.gateway() as gateway:
        talk(gateway)
        [entry] = gateway.manager.journal.entries()
    path, row = f"/api/v1/leases/{entry.taken.lease}/local-jobs", {"number": 1, "state": "running"}
    other = ground.service.as_role("gateway", vo="cms", site="LCG.B.org")
    assert other.put(path, json={"local_jobs": [row]}).status_code == 404
    twice = ground.operator.put(path, json={"local_jobs": [row, row]})
    assert (twice.status_code, "local job 1 is there twice" in twice.text) == (400, True)
    assert ground.operator.put(path, json={"local_jobs": [row]}).status_code == 204
    ground.operator.post(f"/api/v1/leases/{entry.taken.lease}/release", json={})
    assert ground.operator.put(path, json={"local_jobs": [row]}).status_code == 409


def test_the_handled_job_types_are_advertised_and_shown(ground: Ground) -> None:
    with ground.gateway() as gateway:
        talk(gateway)
    [handled] = ground.operator.get(f"/api/v1/sites/{SITE}").json()["job_types"]
    assert handled["scope"] == QUEUE
    assert {"generic", "montecarlo"} <= set(handled["job_types"])


def test_an_answer_that_got_lost_brings_the_same_job_again_also_to_the_next_process(ground: Ground) -> None:
    ground.submit(3)
    with ground.gateway() as gateway:
        assert ground.line is not None
        ground.line.loses = "requestJob"
        assert gateway.talk(utc_now()).away
        assert gateway.talk(utc_now()).away
        assert not gateway.manager.grid_jobs()
    assert ground.statuses() == {"Matched": 1, "Waiting": 2}
    with ground.gateway(queues=[{**_queue(), "max_grid_jobs": 1}]) as gateway:
        talk(gateway)
        assert len(gateway.manager.grid_jobs()) == 1
    assert ground.statuses() == {"Running": 1, "Waiting": 2}


def _queue() -> dict[str, object]:
    return {"queue": QUEUE, "system": "host", "batch_queue": "local", "memory": 100}


def test_an_outage_costs_nothing_and_a_restart_goes_on_with_the_same_leases(ground: Ground) -> None:
    with begun(ground) as (gateway, job_id):
        assert ground.line is not None
        ground.line.cut = True
        assert gateway.talk(utc_now()).away
        ground.line.cut = False
        talk(gateway)
        assert phases(gateway) == {job_id: ManagerPhase.SUBMITTING}
    with ground.gateway() as gateway:
        talk(gateway)
        assert phases(gateway) == {job_id: ManagerPhase.SUBMITTING}
    assert (ground.job(job_id)["status"], ground.job(job_id)["epoch"]) == ("Running", 1)


def test_the_local_jobs_are_ended_when_the_service_has_not_answered_for_as_long_as_it_set(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = ground.submit()
    passed = 0.0
    monkeypatch.setattr(leases, "elapsed_time", lambda: passed)
    with ground.gateway() as gateway:
        talk(gateway)
        talk(gateway)
        assert ground.line is not None
        ground.line.cut = True
        passed = 21_599.0
        assert gateway.talk(utc_now()).away
        assert phases(gateway) == {job_id: ManagerPhase.SUBMITTING}
        passed = 21_600.0
        assert gateway.talk(utc_now()).away
        assert phases(gateway) == {job_id: ManagerPhase.CANCELLING}
        ground.line.cut = False
        end(gateway, job_id, PARTIAL)
        gateway.leases.deliver()
        assert not gateway.manager.grid_jobs()
    assert ground.job(job_id)["status"] == "Running", "the service gives it away by itself"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_grid_job_whose_start_gets_no_answer_is_ended_with_its_lease(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """The service gives it to others then: it would run twice."""
    [job_id] = ground.submit()
    with ground.gateway() as gateway:
        assert ground.line is not None
        ground.line.refuses = "/start", Away("away, on purpose")
        assert gateway.talk(utc_now()).away
        assert phases(gateway) == {job_id: ManagerPhase.SUBMITTING}
        if not restarts:
            _end_lease(gateway, monkeypatch)
            assert phases(gateway) == {job_id: ManagerPhase.CANCELLING}
            return
    with ground.gateway() as gateway:
        assert ground.line is not None
        ground.line.cut = True
        _end_lease(gateway, monkeypatch)
        assert phases(gateway) == {job_id: ManagerPhase.CANCELLING}


def _end_lease(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    # The date of an answer is that of the start of the test's service.
    later = elapsed_time() + VoOptions().leases.time + 3600
    monkeypatch.setattr(leases, "elapsed_time", lambda: later)
    assert gateway.talk(utc_now()).lost == 1


def test_a_job_that_is_recorded_but_not_begun_is_begun_by_the_next_process(ground: Ground) -> None:
    [job_id] = ground.submit()
    with ground.gateway() as gateway:
        assert ground.line is not None
        ground.line.loses = "/start"
        assert gateway.talk(utc_now()).away
    with ground.gateway() as gateway:
        talk(gateway)
    assert (ground.job(job_id)["status"], ground.job(job_id)["epoch"]) == ("Running", 1)


def test_a_kill_reaches_the_manager_and_the_job_stays_killed_with_its_output(
    ground: Ground, tmp_path: Path
) -> None:
    with begun(ground) as (gateway, job_id):
        assert ground.service.user().post(f"/api/v1/jobs/{job_id}/kill").is_success
        assert "1 to be killed" in talk(gateway)
        assert phases(gateway) == {job_id: ManagerPhase.CANCELLING}
        end(gateway, job_id, PARTIAL, archive(tmp_path))
        assert gateway.leases.deliver() == 1
        assert not gateway.manager.grid_jobs()
    assert ground.job(job_id)["status"] == "Killed"
    assert ground.service.user().get(f"/api/v1/jobs/{job_id}/output").is_success


def test_the_local_jobs_of_an_attempt_that_was_taken_away_are_ended_and_the_job_is_left_alone(
    ground: Ground,
) -> None:
    with begun(ground) as (gateway, job_id):
        answer = ground.service.operator().post(f"/api/v1/jobs/{job_id}/reschedule")
        assert answer.is_success, answer.text
        assert "1 lost" in talk(gateway)
        assert [each.cancelled for each in gateway.manager.journal.entries() if each.taken.epoch == 1] == [
            True
        ]
        end(gateway, job_id, DONE)
        gateway.leases.deliver()
        assert all(each.taken.epoch > 1 for each in gateway.manager.grid_jobs())
    assert ground.job(job_id)["status"] != "Done"


@pytest.mark.parametrize(("report", "status"), [(DONE, "Done"), (PARTIAL, "Failed")])
def test_what_has_ended_is_delivered_with_its_output_and_a_partial_success_says_so(
    ground: Ground, tmp_path: Path, report: Report, status: str
) -> None:
    with begun(ground) as (gateway, job_id):
        end(gateway, job_id, report, archive(tmp_path))
        assert gateway.leases.deliver() == 1
        assert gateway.leases.deliver() == 0
        assert not gateway.manager.grid_jobs()
    job = ground.job(job_id)
    assert (job["status"], job["minor_status"]) == (status, report.minor_status)
    assert job["application_status"] == report.application_status
    output = ground.service.user().get(f"/api/v1/jobs/{job_id}/output").content
    assert output == (tmp_path / "output.tar.gz").read_bytes()


@pytest.mark.parametrize("lost", ["/start", "/output", "/finish"])
def test_a_delivery_that_is_cut_off_anywhere_is_taken_up_by_the_next_process(
    ground: Ground, tmp_path: Path, lost: str
) -> None:
    with begun(ground) as (gateway, job_id):
        end(gateway, job_id, PARTIAL, archive(tmp_path))
    with ground.gateway() as gateway:
        assert ground.line is not None
        ground.line.loses = lost
        with pytest.raises(Exception, match="on purpose"):
            gateway.leases.deliver()
    with ground.gateway() as gateway:
        gateway.leases.deliver()
        assert not gateway.manager.grid_jobs()
    job = ground.job(job_id)
    assert (job["status"], job["epoch"], job["application_status"]) == (
        "Failed",
        1,
        PARTIAL.application_status,
    )


def test_an_output_whose_commit_was_lost_is_sent_again_before_the_end(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = ground.submit()
    uploads = ground.service.lose_first_output(monkeypatch)
    with ground.gateway() as gateway:
        talk(gateway)
        end(gateway, job_id, DONE, archive(tmp_path))
        assert gateway.leases.deliver() == 0
        assert ground.job(job_id)["status"] == "Running"
        assert gateway.leases.deliver() == 1
    assert (ground.job(job_id)["status"], ground.job(job_id)["epoch"], len(uploads)) == ("Done", 1, 2)
    assert ground.job(job_id)["application_status"] == DONE.application_status
    output = ground.service.user().get(f"/api/v1/jobs/{job_id}/output").content
    assert output == (tmp_path / "output.tar.gz").read_bytes()


def test_a_job_whose_output_is_gone_is_not_done(ground: Ground, tmp_path: Path) -> None:
    with begun(ground) as (gateway, job_id):
        end(gateway, job_id, DONE, tmp_path / "never.tar.gz")
        gateway.leases.deliver()
    assert ground.job(job_id)["minor_status"] == "Failed Uploading OutputSandbox"


def test_the_throttle_sees_the_states_of_the_manager(ground: Ground, tmp_path: Path) -> None:
    ground.service.configure(CONFIG.replace("      CEs:", LEVEL0))
    job_ids = ground.submit(3)
    with ground.gateway() as gateway:
        talk(gateway)  # advertises first: nobody knew before how many there were
        assert "1 throttled" in talk(gateway)
        assert ground.throttle()["counters"]["CurrentSubmittingJobs"] == 2
        end(gateway, job_ids[0], DONE, archive(tmp_path))
        talk(gateway)
        said = ground.throttle()["advertisement"]
        assert (said["CurrentSubmittingJobs"], said["CurrentGatheringOutputJobs"]) == (1, 1)
    assert ground.statuses() == {"Running": 3}


def test_while_as_many_gather_as_may_nothing_new_is_asked_for(ground: Ground, tmp_path: Path) -> None:
    ground.service.configure(CONFIG.replace("      CEs:", LEVEL1))
    first, second, _ = ground.submit(3)
    with ground.gateway() as gateway:
        talk(gateway)
        talk(gateway)
        end(gateway, first, DONE, archive(tmp_path))
        end(gateway, second, DONE, archive(tmp_path))
        assert "no work: 1 permit" in talk(gateway)
        gateway.leases.deliver()
        talk(gateway)
        assert len(gateway.manager.grid_jobs()) == 1


def test_what_a_grid_job_waits_for_is_in_the_report_of_its_gateway(ground: Ground) -> None:
    with begun(ground) as (gateway, job_id):
        [entry] = gateway.manager.journal.entries()
        gateway.manager.journal.note_problem(entry.key, "host: the directory is full")
        talk(gateway)
    [process] = ground.operator.get("/api/v1/site-processes").json()["processes"]
    assert process["problems"] == [f"job {job_id}: host: the directory is full"]


def test_a_queue_that_the_service_does_not_know_holds_up_no_other(ground: Ground) -> None:
    ground.submit()
    queues = [{**_queue(), "queue": "LCG.A.org/ce1/none"}, _queue()]
    with ground.gateway(queues=queues, advertise=[SITE]) as gateway:
        summary = gateway.talk(utc_now())
    assert any("LCG.A.org/ce1/none" in each for each in summary.list_problems())
    assert summary.taken == 1


def test_a_token_that_is_due_is_renewed_and_a_refusal_keeps_nothing_else_from_going_on(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ground.directory / "state" / "token"
    ground.submit(2)
    with ground.gateway() as gateway:
        assert gateway.talk(utc_now()).list_problems() == []
        assert not kept.exists(), "the token lasts for a day"

        monkeypatch.setattr(TokenFile, "is_due", lambda _: True)
        assert gateway.talk(utc_now()).list_problems() == []
        renewed = kept.read_text()
        assert renewed != (ground.directory / "given").read_text()

        assert ground.line is not None
        ground.line.refuses = ("/tokens/renew", Refused(403, "not_allowed", "not today"))
        summary = gateway.talk(utc_now())
        assert summary.list_problems() == ["the token is not renewed: not today (403 not_allowed)"]
        assert (summary.advertised, summary.has_failed) == (3, False)
    assert kept.read_text() == renewed


def test_a_token_that_expired_is_told_and_what_is_here_goes_on(ground: Ground) -> None:
    with begun(ground) as (gateway, job_id):
        assert ground.line is not None
        (ground.directory / "given").write_text("no.such.token")
        assert "not one of ours" in str(gateway.talk(utc_now()).away)
        assert phases(gateway) == {job_id: ManagerPhase.SUBMITTING}


def test_a_restarted_gateway_that_reaches_no_service_ends_what_others_may_have_got(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.submit()
    with ground.gateway() as gateway:
        talk(gateway)
    for hours, lost in ((5, 0), (7, 1)):
        later = elapsed_time() + hours * 3600
        monkeypatch.setattr(leases, "elapsed_time", lambda later=later: later)
        with ground.gateway() as gateway:
            assert ground.line is not None
            ground.line.cut = True
            summary = gateway.talk(utc_now())
            assert (bool(summary.away), summary.lost) == (True, lost)
            assert [each.cancelled for each in gateway.manager.journal.entries()] == [bool(lost)]


def test_a_token_that_was_revoked_ends_what_is_here(ground: Ground) -> None:
    with begun(ground) as (gateway, job_id):
        token = (ground.directory / "given").read_text()
        assert ground.operator.post("/api/v1/tokens/revoke", json={"token": token}).is_success
        assert gateway.talk(utc_now()).lost == 1
        assert [each.cancelled for each in gateway.manager.journal.entries()] == [True]
        end(gateway, job_id, DONE)
        gateway.leases.deliver()
        assert not gateway.manager.grid_jobs()


@pytest.mark.parametrize("path", ["/start", "/output", "/finish"])
def test_a_result_waits_for_a_service_that_does_not_accept_the_token_for_a_while(
    ground: Ground, tmp_path: Path, path: str
) -> None:
    with begun(ground) as (gateway, job_id):
        end(gateway, job_id, DONE, archive(tmp_path))
    with ground.gateway() as gateway:
        assert ground.line is not None
        ground.line.refuses = (path, TokenNotAccepted("not_authenticated", "the token is not one of ours"))
        with pytest.raises(Away, match="not one of ours"):
            gateway.leases.deliver()
        ground.line.refuses = None
        assert gateway.leases.deliver() == 1
    assert (ground.job(job_id)["status"], ground.job(job_id)["epoch"]) == ("Done", 1)
    assert ground.service.user().get(f"/api/v1/jobs/{job_id}/output").is_success


def test_a_report_that_is_refused_is_repeated_without_its_details(ground: Ground) -> None:
    [job_id] = ground.submit()
    report = Report("Failed", "Application Finished With Errors", "3 of 4 local jobs are done", 2**40)
    with ground.gateway() as gateway:
        talk(gateway)
        end(gateway, job_id, report)
        assert gateway.leases.deliver() == 1
    job = ground.job(job_id)
    assert (job["status"], job["minor_status"]) == ("Failed", report.minor_status)
    assert job["application_status"].startswith("the full report was refused: ")
    assert "exit_code" in job["application_status"]


def test_a_token_for_one_vo_more_goes_on_with_what_is_here(ground: Ground) -> None:
    with begun(ground) as (_, job_id):
        pass
    (ground.directory / "given").write_text(ground.service.token("gateway", vo="cms,dune", site=SITE))
    with ground.gateway() as gateway:
        assert "lost" not in talk(gateway)
        assert phases(gateway) == {job_id: ManagerPhase.SUBMITTING}
        end(gateway, job_id, DONE)
        gateway.leases.deliver()
    assert (ground.job(job_id)["status"], ground.job(job_id)["epoch"]) == ("Done", 1)


def test_a_page_that_is_not_found_is_no_lost_lease(ground: Ground) -> None:
    with begun(ground) as (gateway, job_id):
        assert ground.line is not None
        ground.line._prefix = "/elsewhere"
        assert gateway.talk(utc_now()).away
        assert phases(gateway) == {job_id: ManagerPhase.SUBMITTING}


def test_a_job_whose_news_do_not_get_through_keeps_no_other_from_being_heard(ground: Ground) -> None:
    ground.submit(2)
    with ground.gateway() as gateway:
        talk(gateway)
        assert ground.line is not None
        first, second = gateway.manager.grid_jobs()
        ground.line.loses = f"{first.taken.lease}/heartbeat"
        for _ in range(4):
            ground.log.clear()
            summary = gateway.talk(utc_now())
            assert [f"job {first.taken.job_id}" in each for each in summary.list_problems()] == [True]
            assert f"/leases/{second.taken.lease}/heartbeat" in ground.log


def test_an_output_that_does_not_get_through_keeps_no_other_from_being_delivered(
    ground: Ground, tmp_path: Path
) -> None:
    first, second = ground.submit(2)
    with ground.gateway() as gateway:
        talk(gateway)
        for job_id in (first, second):
            end(gateway, job_id, DONE, archive(tmp_path))
        assert ground.line is not None
        ground.line.loses = f"{gateway.manager.grid_jobs()[0].taken.lease}/output"
        with pytest.raises(Away):
            gateway.leases.deliver()
        assert (ground.job(first)["status"], ground.job(second)["status"]) == ("Running", "Done")


def test_a_site_whose_limits_are_not_told_keeps_those_it_had(ground: Ground) -> None:
    ground.service.configure(CONFIG.replace("      CEs:", LEVEL1))
    first, second, _ = ground.submit(3)
    with ground.gateway() as gateway:
        talk(gateway)
        talk(gateway)
        assert ground.line is not None
        (ground.directory / "given").write_text("no.such.token")
        gateway.talk(utc_now())
        here = {each.taken.job_id: each.taken for each in gateway.manager.grid_jobs()}
        assert gateway.permits.may_gather(here[first])
        assert gateway.permits.may_gather(here[second])
        assert not gateway.permits.expect("another", QUEUE)
