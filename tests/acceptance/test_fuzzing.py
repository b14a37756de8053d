"""Some requests of the fuzzing by hand, and what is done about an input that ends its process."""

import logging
import os
import signal

import pytest

from tests.acceptance.fuzzing import __main__ as fuzzing
from tests.acceptance.fuzzing import interface
from tests.acceptance.fuzzing.parsers import Parser


@pytest.mark.timeout(900)
def test_no_request_of_any_role_makes_the_service_fail_hang_or_log_an_error() -> None:
    flaws = list(interface.find_flaws(range(600), seed=1))
    assert not flaws, "\n".join(map(str, flaws))


# xdist has threads, which do nothing
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_an_input_that_ends_its_process_is_a_flaw_and_the_others_are_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def parse(text: str) -> None:
        if "d" in text:
            os.kill(os.getpid(), signal.SIGKILL)

    caplog.set_level(logging.INFO)
    flaws = sum(fuzzing.try_apart(Parser("p", parse, ["abc"]), range(200), 1))
    ended = [record.getMessage() for record in caplog.records if "ended by SIGKILL" in record.getMessage()]
    assert 1 < flaws == len(ended) < 200
