import logging
from dataclasses import replace
from datetime import timedelta

import pytest

from optimizers.chain import chain
from optimizers.chain.chain import ChainContext, Done, Failed, Hold, JobContext, Outcome, Step
from requirements.errors import Problem
from requirements.requirement_class import RequirementClass
from tests.support.factories.chain_contexts import candidate_of, context_of

ASKED = RequirementClass(vo="lhcb", cpu_time=86400)


def path(*names: str) -> Step:
    def step(candidate: JobContext, context: ChainContext) -> Outcome:
        return Done(candidate=replace(candidate, path=names, requirement_class=ASKED))

    return step


def says(outcome: Outcome) -> Step:
    return lambda _candidate, _context: outcome


def done(candidate: JobContext, context: ChainContext) -> Outcome:
    return Done(candidate=candidate)


def test_a_job_goes_through_the_steps_that_job_path_names() -> None:
    context = context_of()
    steps = {"JobPath": path("A", "B"), "A": done, "B": done, "C": says(Failed(reason="never asked"))}
    passage = chain.run_chain(candidate_of(context), steps, context)
    assert isinstance(passage.outcome, Done)
    assert (passage.step, passage.passed) == ("B", ("JobPath", "A", "B"))


def test_the_first_step_that_holds_is_the_last_one() -> None:
    context = context_of()
    hold = Hold(reason="not now", delay=timedelta(seconds=5))
    steps = {"JobPath": path("A", "B"), "A": says(hold), "B": says(Failed(reason="never asked"))}
    passage = chain.run_chain(candidate_of(context), steps, context)
    assert (passage.outcome, passage.step, passage.passed) == (hold, "A", ("JobPath",))


def test_a_step_that_is_not_installed_fails_a_job_that_names_it() -> None:
    context = context_of()
    candidate = candidate_of(context, JobPath=["Missing"])
    passage = chain.run_chain(candidate, {"JobPath": path("Missing")}, context)
    assert passage.outcome == Failed(reason="there is no optimizer Missing, installed are JobPath")


def test_a_job_waits_for_a_step_that_only_the_configuration_names() -> None:
    context = context_of()
    passage = chain.run_chain(candidate_of(context), {"JobPath": path("Missing")}, context)
    assert passage.outcome == Hold(reason="there is no optimizer Missing, installed are JobPath")


def test_a_defect_of_a_step_holds_the_job_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken(candidate: JobContext, context: ChainContext) -> Outcome:
        raise ZeroDivisionError("oops")

    context = context_of()
    with caplog.at_level(logging.ERROR):
        passage = chain.run_chain(candidate_of(context), {"JobPath": path("A"), "A": broken}, context)
    assert isinstance(passage.outcome, Hold)
    assert "ZeroDivisionError: oops" in passage.outcome.reason
    assert "optimizer A failed on job 1" in caplog.text


def test_a_chain_that_never_says_what_the_job_asks_fails_it() -> None:
    context = context_of()
    passage = chain.run_chain(candidate_of(context), {"JobPath": done}, context)
    assert isinstance(passage.outcome, Failed)


def passed(candidate: JobContext, context: ChainContext) -> tuple[str, ...]:
    return chain.run_chain(candidate, chain.installed_steps(), context).passed


def test_input_data_are_looked_at_only_for_jobs_that_name_some() -> None:
    context = context_of()
    assert passed(candidate_of(context), context) == ("JobPath", "JobSanity", "Requirements", "JobScheduling")
    assert "InputData" not in passed(candidate_of(context), context)


def test_the_configuration_orders_the_steps() -> None:
    context = context_of("Operations: {Defaults: {JobPath: {Chain: [Requirements, Own, JobScheduling]}}}")
    steps = {**chain.installed_steps(), "Own": done}
    assert chain.run_chain(candidate_of(context), steps, context).passed == (
        *("JobPath", "JobSanity", "Requirements", "Own", "JobScheduling"),
    )


@pytest.mark.parametrize("named", [["JobSanity"], ["JobPath", "Requirements"], ["JobScheduling"]])
@pytest.mark.parametrize("by_job", [True, False])
def test_nobody_leaves_out_the_steps_without_which_a_job_would_run_anywhere(
    named: list[str], *, by_job: bool
) -> None:
    chain_of_vo = f"Operations: {{lhcb: {{JobPath: {{Chain: [{', '.join(named)}]}}}}}}"
    context = context_of("Resources: {}" if by_job else chain_of_vo)
    own = {"JobPath": named} if by_job else {}
    candidate = candidate_of(context, Requirements={"Memory": 64000}, **own)
    passage = chain.run_chain(candidate, chain.installed_steps(), context)
    assert passage.passed == ("JobPath", "JobSanity", "Requirements", "JobScheduling")
    assert passage.candidate is not None
    assert passage.candidate.requirement_class is not None
    assert passage.candidate.requirement_class.submit_pool is not None


def test_a_job_with_requirements_is_held_where_no_step_names_their_pool() -> None:
    context = context_of()
    candidate = candidate_of(context, Requirements={"Memory": 64000})
    passage = chain.run_chain(candidate, {**chain.installed_steps(), "Requirements": done}, context)
    assert isinstance(passage.outcome, Hold)
    assert passage.step == "JobScheduling"
    assert "no optimizer has set a pool" in passage.outcome.reason


def test_job_sanity_fails_what_cannot_run_any_more() -> None:
    context = context_of()
    gone = replace(candidate_of(context), sandbox_gone=True)
    passage = chain.run_chain(gone, chain.installed_steps(), context)
    assert (passage.step, passage.outcome) == (
        "JobSanity",
        Failed(reason="its input sandbox is not stored any more"),
    )


def test_a_job_that_is_back_fails_where_its_sandbox_is_gone_and_waits_for_what_may_be_mended() -> None:
    context = context_of()
    back = replace(candidate_of(context), reschedules=1)
    gone = chain.run_chain(replace(back, sandbox_gone=True), chain.installed_steps(), context)
    assert gone.outcome == Failed(reason="its input sandbox is not stored any more")
    unread = replace(back, problems=(Problem(path="CPUTime", message="is too large"),))
    assert isinstance(chain.run_chain(unread, chain.installed_steps(), context).outcome, Hold)
