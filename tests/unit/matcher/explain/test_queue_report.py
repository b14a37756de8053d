"""What queues could offer is the same whether one is asked, or all of them at once."""

from cs_config import validate
from cs_config.tree.address import QueueAddress
from matcher.explain import queue_report
from requirements import canonical
from requirements.record import Record
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.listing import WaitingClass

CONFIG = validate.parse(
    """\
Resources:
  Sites:
    LCG.A.org:
      VO: [cms]
      CEs:
        ce1:
          CPUTime: 100000
          Queues:
            small: {MaxRAM: 2000, CPUModel: Intel}
            large: {MaxRAM: 64000, CPUModel: AMD}
            off: {MaxRAM: 64000, CPUModel: Intel, Enabled: false}
            others: {MaxRAM: 64000, CPUModel: Intel, VO: [dune]}
            misfit: {MaxRAM: 100, CPUTime: 10, CPUModel: ARM}
Registry: {VO: {cms: {}, dune: {}}}
""",
    "offers.yaml",
)


def waiting(jobs: int, vo: str, **asked: object) -> WaitingClass:
    requirements = canonical.to_json(Record(values=tuple(asked.items())))  # type: ignore[arg-type]
    asks = RequirementClass(vo=vo, cpu_time=1000)
    return WaitingClass(asked=asks, requirements=requirements, jobs=jobs, first_job=jobs)


WAITING = [
    waiting(1, "cms", MaxRAM=4000, CPUModel="Intel"),
    waiting(2, "cms", MaxRAM=8000, CPUModel="Intel"),
    waiting(4, "cms", MaxRAM=1000, CPUModel="AMD"),
    waiting(8, "dune", MaxRAM=1000, CPUModel="Intel"),
]


def test_queues_asked_together_offer_what_each_offers_alone():
    together = queue_report.suggest_offers(CONFIG, CONFIG.addresses, WAITING)
    alone = {each: list(queue_report.report_queue(CONFIG, each, WAITING).offers) for each in CONFIG.addresses}
    assert together == {each: found for each, found in alone.items() if found}


def test_a_queue_is_told_only_of_jobs_that_one_thing_keeps_away():
    found = queue_report.suggest_offers(CONFIG, CONFIG.addresses, WAITING)
    told = {
        address.queue: [(each.offer, each.gains) for each in found.get(address, ())]
        for address in CONFIG.addresses
    }
    assert told == {
        "small": [
            ("admit the VO dune", 8),
            ("offer CPUModel AMD", 4),
            ("offer MaxRAM 8000", 3),
            ("offer MaxRAM 4000", 1),
        ],
        "large": [("offer CPUModel Intel", 3)],
        "off": [("switch the queue on (Enabled: true)", 3)],
        "others": [("admit the VO cms", 3)],
        "misfit": [],
    }
    assert QueueAddress.parse("LCG.A.org/ce1/misfit") not in found
