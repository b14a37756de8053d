"""Whatever is submitted, and however the configuration changes meanwhile, all answers about a job agree.

After each step these name the same queues for each job: the explanation of its description, the explanation
of the waiting job, and what pilots of every queue may request. The preview of a change foretells which jobs
gain and lose queues by it.
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agents import pools as pool_agent
from cs_config.editing import proposals
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from matcher import demand
from matcher.claim.matcher import Matcher
from matcher.explain import queue_set
from matcher.preview import outlook
from matcher.request import queue_offer
from matcher.request.match_request import MatchCaller
from optimizers.chain import batch
from optimizers.submit import checking, submission
from pilotage.service.queries import explanations
from pilotage.service.queries.explanations import JobQuestion
from requirements.errors import InvalidInput
from requirements.resource import StatedResource
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import jobs
from tests.support.factories.submitted_jobs import ANN, store_grid

VO = "lhcb"
CALLER = MatchCaller(subject="pilot", vos=frozenset({VO}))
SITES = ("A.B.ch", "C.D.ch")
CATALOGUE = {"Replicas": {"/lhcb/one": ["near", "shared"], "/lhcb/two": ["Near", "C.D.ch"]}}
QUEUES = [QueueAddress(site=site, ce="ce", queue=queue) for site in SITES for queue in ("long", "short")]

Record = dict[str, Any]


def some_of(
    values: Mapping[str, st.SearchStrategy[Any]], most: int, least: int = 0
) -> st.SearchStrategy[Record]:
    """A few of these names: with all of them no queue would fit any job."""
    names = st.lists(st.sampled_from(sorted(values)), min_size=least, max_size=most, unique=True)
    return names.flatmap(lambda some: st.fixed_dictionaries({name: values[name] for name in some}))


OS = st.sampled_from(["Linux", "linux", "CentOS"])
QUEUE_PARAMETERS = some_of(
    {
        "Memory": st.sampled_from([1000, 4000, 4000.0, [4000], [1000, 4000]]),
        "OS": st.one_of(OS, st.lists(OS, min_size=1, max_size=2, unique_by=str.lower)),
        "Soft": st.sampled_from(["App1", ["App1", "App2"], ["App2"]]),
        "Platform": st.sampled_from(["el7", "el8", "el9"]),
        "MaxRAM": st.sampled_from([2000, 8000]),
        "CPUTime": st.sampled_from([1000, 100_000]),
        "NumberOfProcessors": st.sampled_from([1, 8]),
        "Tag": st.sampled_from(["fast", ["fast", "big"]]),
        "RequiredTag": st.just("big"),
        "WholeNode": st.booleans(),
        "GPUs": st.sampled_from([0, 1]),
        "JobType": st.just("Merge"),
        "Enabled": st.sampled_from([True, True, False]),
        "VO": st.sampled_from([["lhcb"], ["lhcb"], ["cms"]]),
        "NodeAttributes": st.just({"Model": ["Xeon", "Epyc"]}),
        "Requirements": st.sampled_from(['other.Owner == "ann"', "other.CPUTime < 50000"]),
    },
    most=3,
)
COMPATIBILITY = st.sampled_from([{}, {"el9": ["el8", "el7"]}, {"el8": ["el7"]}, {"el9": "el7"}])
SCHEDULING = st.fixed_dictionaries(
    {},
    optional={
        "NarrowSites": st.booleans(),
    },
)
DEFAULTS = some_of(
    {
        "CPUTime": st.sampled_from([600, 43_200]),
        "Site": st.sampled_from(["A.B.ch", "C.D.ch"]),
        "BannedSite": st.just("A.B.ch"),
        "Platform": st.just("el8"),
        "MinRAM": st.sampled_from([1000, 4000]),
        "NumberOfProcessors": st.sampled_from([1, 4]),
        "WholeNode": st.booleans(),
        "Tags": st.sampled_from(["fast", "big"]),
        "GPUs": st.sampled_from([0, 1]),
        "JobType": st.sampled_from(["Merge", "MC"]),
        "Priority": st.sampled_from([3, 5]),
    },
    most=2,
).map(lambda values: {name: {"default": value} for name, value in values.items()})
DECLARED = st.sampled_from(
    [
        {},
        {"Memory": {"resource": "MaxRAM"}},
        {"Soft": {"match": "all"}},
        {"Memory": {"type": "number", "max": 2000}},
    ]
)
TREES = st.builds(
    lambda queues, storage, os, scheduling, declared, defaults, extra: {
        "Resources": {
            "Sites": {
                site: {
                    "SE": storage[site],
                    "CEs": {
                        "ce": {"Queues": {each.queue: queues[each] for each in QUEUES if each.site == site}}
                    },
                }
                for site in SITES
            },
            "Computing": {"OSCompatibility": os},
        },
        "Operations": {
            VO: {
                "JobScheduling": scheduling,
                "JobDescription": {**declared, **defaults, "Extra": extra},
            }
        },
        "Registry": {"VO": {VO: {}, "cms": {}}},
    },
    st.fixed_dictionaries(dict.fromkeys(QUEUES, QUEUE_PARAMETERS)),
    st.fixed_dictionaries(
        dict.fromkeys(SITES, st.sampled_from([[], ["near"], ["Shared"], ["near", "Shared"]]))
    ),
    COMPATIBILITY,
    SCHEDULING,
    DECLARED,
    DEFAULTS,
    st.sampled_from([[], ["Note"]]),
)
RECORDS = some_of(
    {
        "Memory": st.sampled_from([1000, 4000, 4000.0, [4000]]),
        "OS": st.sampled_from(["Linux", "centos"]),
        "soft": st.sampled_from(["app1", ["App1", "App2"]]),
        "Model": st.just("Xeon"),
    },
    most=2,
    least=1,
)
EXPRESSIONS = st.sampled_from(
    [
        "other.Memory >= 4000",
        "4e3 <= Memory",
        'other.OS =?= "CentOS"',
        'other.OS == "centos"',
        'member("App1", other.Soft)',
        'other.Memory > 2000 || member("App1", other.Soft)',
        'member("App1", other.Soft) || other.Memory > 2000',
        "isUndefined(other.Memory)",
        "other.Memory is undefined",
        "other.GPUs > 0 ? other.MaxRAM > 4000 : other.Memory > 2000",
        'other.Model == "Epyc"',
        "other.MaxRAM >= MY.MinRAM",
        "other.CPUTime >= MY.CPUTime",
    ]
)
DESCRIPTIONS = some_of(
    {
        "Requirements": st.one_of(RECORDS, EXPRESSIONS),
        "Site": st.sampled_from(["A.B.ch", ["A.B.ch", "C.D.ch"], "ANY"]),
        "BannedSite": st.just("C.D.ch"),
        "Platform": st.sampled_from(["el7", "EL8"]),
        "CPUTime": st.sampled_from([500, 50_000]),
        "Priority": st.sampled_from([2, 7]),
        "MinRAM": st.sampled_from([1000, 4000]),
        "NumberOfProcessors": st.sampled_from([1, 4]),
        "WholeNode": st.booleans(),
        "Tags": st.sampled_from(["fast", ["fast", "big"]]),
        "GPUs": st.sampled_from([0, 1]),
        "JobType": st.sampled_from(["Merge", "MC"]),
        "InputData": st.sampled_from(["/lhcb/one", "/lhcb/two", ["/lhcb/one", "/lhcb/two"]]),
    },
    most=2,
).map(lambda stated: {"Executable": "a", **stated})


class WholePath(RuleBasedStateMachine):
    """Submissions and changes of the configuration, on a database of its own."""

    template: Path  #: an empty database

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        path = Path(self.directory.name) / "test.db"
        shutil.copy(self.template, path)
        self.catalogue = path.with_name("replicas.json")
        self.catalogue.write_text(json.dumps(CATALOGUE))
        self.engine = database.connect(f"sqlite:///{path}")
        self.now = datetime(2025, 1, 1, tzinfo=UTC)
        self.described: dict[int, Record] = {}  # submitted descriptions by job id

    def teardown(self) -> None:
        self.engine.dispose()
        self.directory.cleanup()

    @initialize(tree=TREES)
    def begin(self, tree: Record) -> None:
        self._configure(tree)
        self.matcher = Matcher(self.engine, lambda: self.config, lambda: self.now, Random(1))

    @rule(stated=DESCRIPTIONS)
    def submit(self, stated: Record) -> None:
        """A description that the options of today refuse is not submitted; a job that fails is left out."""
        try:
            accepted = submission.submit(self.engine, self.config, ANN, [stated], now=self.now)
        except InvalidInput:
            return
        result = accepted.decided + batch.optimize(self.engine, self.config, accepted.due, now=self.now)
        self.described |= dict.fromkeys(result.waiting, stated)
        self._run_agent()

    @precondition(lambda self: self.described)
    @rule(tree=TREES)
    def change(self, tree: Record) -> None:
        """What the preview foretells comes true."""
        before = self._list_offers()
        proposal = proposals.propose_text(self.config, self._write(tree))
        with database.reading(self.engine) as conn:
            foretold = outlook.compute_outlook(conn, proposal, vos=None, now=self.now).jobs.get(VO)
        self._configure(tree)
        after = self._list_offers()
        shifts = Counter[str]()
        for job_id in self.described:
            was, now = before[job_id], after[job_id]
            shifts.update({"stuck": bool(was and not now), "freed": bool(now and not was)})
            shifts.update({"gain": bool(now - was), "lose": bool(was - now)})
        assert foretold is not None
        assert shifts == {name: getattr(foretold, name) for name in ("stuck", "freed", "gain", "lose")}

    @invariant()
    def all_answers_agree(self) -> None:
        """The explanation of a description counts where the options of today accept it.

        Where the optimizers of today would fail it, the waiting job fits no queue.
        """
        offers = self._list_offers()
        for job_id, stated in self.described.items():
            with database.reading(self.engine) as conn:
                job = jobs.get_job(conn, job_id)
                explained = explanations.ask_about_job(conn, self.config, job, now=self.now)
            assert job.status is JobStatus.WAITING
            options = options_for(self.config, VO).job_description
            default = options.filled_in["Priority"] if "Priority" not in stated else stated["Priority"]
            assert job.priority == default
            assert job.job_type == stated.get("JobType", options.filled_in.get("JobType", ""))
            assert self._list_eligible(explained) == offers[job_id], (job_id, stated)
            try:
                run = checking.dry_run_source(self.config, ANN, stated, now=self.now)
            except InvalidInput:
                continue
            described = explanations.ask_about_dry_run(self.config, run)
            eligible = frozenset() if described.trouble else self._list_eligible(described)
            assert eligible == offers[job_id], (job_id, stated, described.trouble)

    def _write(self, tree: Record) -> str:
        scheduling = {**tree["Operations"][VO]["JobScheduling"], "InputDataCatalogue": str(self.catalogue)}
        options = {**tree["Operations"][VO], "JobScheduling": scheduling}
        return json.dumps({**tree, "Operations": {VO: options}})

    def _configure(self, tree: Record) -> None:
        self.config = store_grid(self.engine, self.now, self._write(tree))
        self._run_agent()

    def _run_agent(self) -> None:
        self.now += timedelta(seconds=10)
        assert pool_agent.cycle(self.engine, self.config, now=self.now, holder="test") is not None

    def _list_offers(self) -> Mapping[int, frozenset[QueueAddress]]:
        """The queues whose pilots may request each job."""
        found: dict[int, set[QueueAddress]] = {job_id: set() for job_id in self.described}
        for address in QUEUES:
            offered = queue_offer.build_resource(self.config.values(address, VO))
            presented = StatedResource(
                resource=replace(offered, vos=frozenset({VO})),
                site=address.site,
                ce=address.ce,
                queue=address.queue,
            )
            for each in demand.get_matching_task_queues(self.matcher, presented, CALLER):
                for job_id in each.job_ids:
                    found[job_id].add(address)
        return {job_id: frozenset(queues) for job_id, queues in found.items()}

    def _list_eligible(self, question: JobQuestion) -> frozenset[QueueAddress]:
        whole = queue_set.all_queues(self.config, VO)
        return whole.addresses(whole.eligible(question.demand))


def test_all_answers_about_a_job_agree_whatever_changes(
    sqlite_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WholePath, "template", sqlite_template, raising=False)
    run_state_machine_as_test(
        WholePath,
        settings=settings(
            max_examples=15,
            stateful_step_count=6,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        ),
    )
