from collections.abc import Mapping

import pytest

from cs_config import validate
from cs_config.tree.address import QueueAddress
from cs_config.tree.admission import Admission
from cs_config.tree.configuration import Configuration

TREE = """\
Resources:
  Sites:
    S:
      Requirements: other.VO == "cms"
      VOs: {atlas: {Requirements: other.VO == "atlas" && other.CPUTime < 100}}
      CEs:
        C:
          Queues:
            inherits: {}
            own: {Requirements: other.VO =!= "cms"}
            free: {Requirements: null}
            address: {Requirements: 'GlueCEUniqueID == "C/address" && JobType == "Test" && MY.Only =?= undefined'}
            flag: {Requirements: false}
            egee:
              Requirements: null
              VO: [EGEE]
              CloseSE: gridftp05.cern.ch
              AuthorizationCheck: >-
                member(other.CertificateSubject,GlueCEAccessControlBaseRule)
                || member(strcat("VO:",other.VirtualOrganisation), GlueCEAccessControlBaseRule)
              CloseOutputSECheck: IsUndefined(other.OutputSE) || member(other.OutputSE,GlueCESEBindGroupSEUniqueID)
"""  # noqa: E501
CONFIG = validate.parse(TREE)


def of(queue: str, vo: str = "cms", config: Configuration = CONFIG) -> Admission:
    found = config.admission(QueueAddress(site="S", ce="C", queue=queue), vo)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("queue", "vo", "job", "admitted"),
    [
        ("inherits", "cms", {"vo": "CMS"}, True),
        ("inherits", "atlas", {"vo": "atlas", "cputime": 50}, True),
        ("inherits", "atlas", {"vo": "atlas", "cputime": 500}, False),
        ("own", "cms", {"vo": "cms"}, False),
        ("address", "cms", {"jobtype": "test", "only": 1}, True),
        ("address", "cms", {"jobtype": "User"}, False),
        ("flag", "cms", {}, False),
    ],
)
def test_the_nearest_requirements_decide(
    queue: str, vo: str, job: Mapping[str, str | int], admitted: bool
) -> None:
    assert of(queue, vo).admits(job) is admitted
    assert (of(queue, vo).failing(job) == ()) is admitted


def test_a_queue_that_asks_nothing_has_no_admission() -> None:
    free = QueueAddress(site="S", ce="C", queue="free")
    assert CONFIG.admission(free, "cms") is None
    assert not validate.parse("Resources: {Sites: {S: {CEs: {C: {Queues: {q: {}}}}}}}").has_admission


def test_both_checks_of_glite_hold_by_default() -> None:
    queue = of("egee", "EGEE")
    assert queue.asks == ("certificatesubject", "outputse", "virtualorganisation")
    member = {"certificatesubject": "/DC=it/CN=A", "virtualorganisation": "EGEE"}
    assert queue.admits(member)
    assert queue.admits({**member, "outputse": "gridftp05.cern.ch"})
    assert not queue.admits({**member, "outputse": "elsewhere"})
    found = queue.failing({"virtualorganisation": "cms", "outputse": "elsewhere"})
    assert [(why.requirement, why.wanted, why.has) for why in found] == [
        (
            "AuthorizationCheck",
            (
                "member(other.CertificateSubject,GlueCEAccessControlBaseRule) "
                '|| member(strcat("VO:",other.VirtualOrganisation), GlueCEAccessControlBaseRule)'
            ),
            (
                "other.CertificateSubject is absent; GlueCEAccessControlBaseRule = VO:EGEE; "
                "other.VirtualOrganisation = cms"
            ),
        ),
        (
            "CloseOutputSECheck",
            "IsUndefined(other.OutputSE) || member(other.OutputSE,GlueCESEBindGroupSEUniqueID)",
            "other.OutputSE = elsewhere; GlueCESEBindGroupSEUniqueID = gridftp05.cern.ch",
        ),
    ]


def test_only_the_part_that_is_not_true_is_told() -> None:
    [miss] = of("inherits", "atlas").failing({"vo": "atlas", "cputime": 100})
    assert (miss.requirement, miss.wanted) == ("Requirements of the queue", "other.CPUTime < 100")
    assert miss.has == "other.CPUTime = 100"


def test_true_is_not_one_to_what_is_remembered() -> None:
    queue = of("q", config=validate.parse(_one("Requirements: other.A =?= 1")))
    assert [queue.admits({"a": value}) for value in (1, True, 1.0, (1,), (True,), "1")] == [True] + [
        False
    ] * 5


def test_checks_are_those_that_the_queue_names_and_has() -> None:
    text = "{Checks: [Mine, Absent], Mine: other.A == 1, AuthorizationCheck: 'false'}"
    queue = of("q", config=validate.parse(_one(text)))
    assert queue.admits({"a": 1})
    assert [why.requirement for why in queue.failing({})] == ["Mine"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Requirements: 'other.A <'", "the end where a value should stand"),
        ("Requirements: [a]", "allowed is a ClassAd expression"),
        ("Requirements: 5", "allowed is a ClassAd expression"),
        ("AuthorizationCheck: random() > 1", "the function random is not allowed"),
        ("AuthorizationCheck: [a]", "a list, allowed is a ClassAd expression"),
        ("Rank: 'other.A +'", "the end where a value should stand"),
        ("Rank: true", "allowed is a ClassAd expression or a number"),
        ("{Checks: Mine, mine: 0x10 < A}", "0x10 is hexadecimal"),
        ("Checks: [a b]", "allowed is names of attributes"),
        ("VOs: {cms: {Requirements: CurrentTime > 1}}", "currenttime is not an attribute"),
    ],
)
def test_what_is_no_safe_expression_is_no_configuration(text: str, wrong: str) -> None:
    problems = validate.report(_one(text), "grid.yaml").errors
    assert any(wrong in str(problem) and "grid.yaml:6" in str(problem) for problem in problems), problems


def _one(parameters: str) -> str:
    body = parameters if parameters.startswith("{") else f"{{{parameters}}}"
    return f"Resources:\n  Sites:\n    S:\n      CEs:\n        C:\n          Queues: {{q: {body}}}\n"
