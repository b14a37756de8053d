import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from optimizers import chain, plugins
from optimizers.candidate import Candidate
from optimizers.chain import Step
from optimizers.context import Context
from optimizers.outcome import Done, Failed, Hold, Outcome
from taskqueue.classes import RequirementClass

Make = Callable[..., Candidate]
MakeContext = Callable[..., Context]
ASKED = RequirementClass(vo="lhcb", cpu_time=86400)


def path(*names: str) -> Step:
    def step(candidate: Candidate, context: Context) -> Outcome:
        return Done(candidate=replace(candidate, path=names, requirement_class=ASKED))

    return step


def says(outcome: Outcome) -> Step:
    return lambda _candidate, _context: outcome


def done(candidate: Candidate, context: Context) -> Outcome:
    return Done(candidate=candidate)


def test_a_job_goes_through_the_steps_that_job_path_names(
    candidate_of: Make, context_of: MakeContext
) -> None:
    context = context_of()
    steps = {"JobPath": path("A", "B"), "A": done, "B": done, "C": says(Failed(reason="never asked"))}
    passage = chain.run(candidate_of(context), steps, context)
    assert isinstance(passage.outcome, Done)
    assert (passage.step, passage.passed) == ("B", ("JobPath", "A", "B"))


def test_the_first_step_that_holds_is_the_last_one(candidate_of: Make, context_of: MakeContext) -> None:
    context = context_of()
    hold = Hold(reason="not now", delay=timedelta(seconds=5))
    steps = {"JobPath": path("A", "B"), "A": says(hold), "B": says(Failed(reason="never asked"))}
    passage = chain.run(candidate_of(context), steps, context)
    assert (passage.outcome, passage.step, passage.passed) == (hold, "A", ("JobPath",))


def test_a_step_that_is_not_installed_fails_a_job_that_names_it(
    candidate_of: Make, context_of: MakeContext
) -> None:
    context = context_of()
    candidate = candidate_of(context, JobPath=["Missing"])
    passage = chain.run(candidate, {"JobPath": path("Missing")}, context)
    assert passage.outcome == Failed(reason="there is no optimizer Missing, installed are JobPath")


def test_a_job_waits_for_a_step_that_only_the_configuration_names(
    candidate_of: Make, context_of: MakeContext
) -> None:
    context = context_of()
    passage = chain.run(candidate_of(context), {"JobPath": path("Missing")}, context)
    assert passage.outcome == Hold(reason="there is no optimizer Missing, installed are JobPath")


def test_a_defect_of_a_step_fails_the_job_and_is_logged(
    candidate_of: Make, context_of: MakeContext, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(candidate: Candidate, context: Context) -> Outcome:
        raise ZeroDivisionError("oops")

    context = context_of()
    with caplog.at_level(logging.ERROR):
        passage = chain.run(candidate_of(context), {"JobPath": path("A"), "A": broken}, context)
    assert isinstance(passage.outcome, Failed)
    assert "ZeroDivisionError: oops" in passage.outcome.reason
    assert "optimizer A broke on job 1" in caplog.text


def test_a_chain_that_never_says_what_the_job_asks_fails_it(
    candidate_of: Make, context_of: MakeContext
) -> None:
    context = context_of()
    passage = chain.run(candidate_of(context), {"JobPath": done}, context)
    assert isinstance(passage.outcome, Failed)


def test_our_steps_are_plug_ins_like_any_other() -> None:
    assert {"JobPath", "JobSanity", "InputData", "Requirements", "JobScheduling"} <= set(plugins.installed())


def passed(candidate: Candidate, context: Context) -> tuple[str, ...]:
    return chain.run(candidate, plugins.installed(), context).passed


def test_input_data_are_looked_at_only_for_jobs_that_name_some(
    candidate_of: Make, context_of: MakeContext
) -> None:
    context = context_of()
    assert passed(candidate_of(context), context) == ("JobPath", "JobSanity", "Requirements", "JobScheduling")
    assert "InputData" not in passed(candidate_of(context), context)


def test_the_configuration_orders_the_steps(candidate_of: Make, context_of: MakeContext) -> None:
    context = context_of("Operations: {Defaults: {JobPath: {Chain: [JobScheduling]}}}")
    assert passed(candidate_of(context), context) == ("JobPath", "JobSanity", "JobScheduling")


def test_a_job_may_name_its_own_steps_but_not_leave_out_the_first_and_last(
    candidate_of: Make, context_of: MakeContext
) -> None:
    context = context_of()
    assert passed(candidate_of(context, JobPath=["JobPath", "Requirements"]), context) == (
        "JobPath",
        "JobSanity",
        "Requirements",
        "JobScheduling",
    )


def test_job_sanity_fails_what_cannot_run_any_more(candidate_of: Make, context_of: MakeContext) -> None:
    context = context_of()
    gone = replace(candidate_of(context), sandbox_gone=True)
    passage = chain.run(gone, plugins.installed(), context)
    assert (passage.step, passage.outcome) == (
        "JobSanity",
        Failed(reason="its input sandbox is not stored any more"),
    )
