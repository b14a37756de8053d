import json

from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.payload.payload import PayloadEnd, Report


def test_exit_code_0_is_done() -> None:
    assert payload.report_of_end(PayloadEnd(exit_code=0, signal=None)) == Report(
        "Done", "Execution Complete", "", 0
    )


def test_another_exit_code_fails_and_is_told() -> None:
    found = payload.report_of_end(PayloadEnd(exit_code=3, signal=None))

    assert (found.status, found.exit_code) == ("Failed", 3)
    assert found.minor_status == "Application Finished With Errors"
    assert found.application_status == "exit code 3"


def test_a_signal_is_named() -> None:
    found = payload.report_of_end(PayloadEnd(exit_code=139, signal=11))

    assert found.application_status == "ended by signal 11 (SIGSEGV)"


def test_a_done_job_whose_output_is_lost_is_not_done() -> None:
    found = payload.report_of_end(PayloadEnd(exit_code=0, signal=None)).without_output("too large: x")

    assert (found.status, found.minor_status) == ("Failed", "Failed Uploading OutputSandbox")
    assert found.exit_code == 0


def test_a_failed_job_keeps_its_reason_when_its_output_is_lost() -> None:
    found = payload.report_of_end(PayloadEnd(exit_code=3, signal=None)).without_output("too large: x")

    assert found.minor_status == "Application Finished With Errors"
    assert found.application_status == "exit code 3; no output: too large: x"


def test_what_is_sent_is_what_the_service_takes() -> None:
    sent = payload.failure_report("minor", "a\0b \ud800 " + "x" * 5000).as_json()

    text = str(sent["application_status"])
    assert "\0" not in text
    assert len(text) == 1000
    json.dumps(sent).encode("utf-8")
