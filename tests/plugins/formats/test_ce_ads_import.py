"""CE ads into the tree and out of it: nothing that was carried is lost, and nothing is written twice."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.classes import queue_class_index
from cs_config.errors import PathNotFound
from cs_config.source import yaml_writer
from cs_config.tree import admission
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from pilotage.plugins.formats import ce_ads, ce_ads_import
from pilotage.plugins.formats.ce_ads_import import AdProposal
from requirements.classad import match_expression
from requirements.classad.expression import parse_expression
from requirements.errors import InvalidInput
from requirements.values import Value, fold

SEED = (Path(__file__).parents[2] / "data" / "glue_ce.ad").read_text()
MILANO = QueueAddress(site="EGEE.Milano.it", ce="atlfarm006.mi.infn.it:2119", queue="blah-pbs-long")
EMPTY = "Resources: {}\n"
#: As the document has them.
REQUIREMENTS = """other.GlueHostBenchmarkSI00 > 500 ?
               other.GlueCEPolicyMaxCPUTime > 1000:
               other.GlueCEPolicyMaxCPUTime > 2000"""
TREE = """\
Resources:
  Sites:
    A:
      Country: it
      CEs:
        ce:
          MaxRAM: 4000
          Tag: [Big]
          Queues:
            q:
              FreeCPUs: 3
              Mark: mine
              VOs: {cms: {MaxRAM: 2000}}
              NodeAttributes: {SSD: [true, false]}
              update_time: 1000
              expiry_time: 300
            r: {Requirements: 'other.Memory < 5', Checks: [Mine], Mine: 'TARGET.x', Text: 'TARGET.x'}
"""


def parse(text: str, version: int = 1) -> Configuration:
    return validate.parse(text, "resources.yaml", version)


def propose(config: Configuration, text: str, site: str | None = None) -> AdProposal:
    return ce_ads_import.propose_ads(config, {"ces.ad": text}, site=site)


def imported(text: str, tree: str = EMPTY, site: str | None = None) -> Configuration:
    return parse(propose(parse(tree), text, site).text, 2)


def changes(proposal: AdProposal) -> dict[str, Value | None]:
    return {each.name: each.after for each in proposal.changes}


@pytest.fixture(scope="module")
def milano() -> Configuration:
    return imported(SEED, site=MILANO.site)


def test_the_ad_of_2005_becomes_a_queue_with_all_its_attributes(milano: Configuration) -> None:
    proposal = propose(parse(EMPTY), SEED, MILANO.site)
    assert (proposal.new, proposal.notes) == ((MILANO,), ())
    values = milano.values(MILANO, "egee")
    [ad] = ce_ads.read_ads(SEED, "ces.ad")
    assert {entry.name for entry in ad.attributes} <= set(values)
    assert values["GlueCEAccessControlBaseRule"] == ("VO:EGEE",)
    assert values["AuthorizationCheck"] == (
        "member(other.CertificateSubject,GlueCEAccessControlBaseRule) || "
        'member(strcat("VO:",other.VirtualOrganisation), GlueCEAccessControlBaseRule)'
    )
    assert values["CloseStorageElements"] == '{ [ mount = "/mn/SE2"; name = gridftp05.cern.ch ] }'


def test_our_parameters_follow_in_our_units(milano: Configuration) -> None:
    values = milano.values(MILANO, "egee")
    assert (values["CPUTime"], values["MaxRAM"], values["SI00"]) == (172800 * 60, 1001, 400)
    assert (values["VO"], values["CEQueueName"]) == (("EGEE",), "infinite")
    assert milano.usable(MILANO, "egee")
    assert not milano.usable(MILANO, "cms")


@pytest.mark.parametrize("published", ["0", "444444", "999999", "9999999", "2147483647", '"n/a"'])
def test_numbers_that_nobody_stated_imply_nothing_and_are_named(published: str) -> None:
    names = ["GlueCEPolicyMaxCPUTime", "GlueCEPolicyMaxWallClockTime", "GlueHostMainMemoryRAMSize"]
    stated = "".join(f"{name} = {published}; " for name in names)
    found = propose(
        parse(EMPTY), f'[ id = "ce/q"; info = [ {stated} GlueHostArchitectureSMPSize = "8"; ] ]', "A"
    )
    values = parse(found.text, 2).values(QueueAddress(site="A", ce="ce", queue="q"), "cms")
    assert not values.keys() & {"CPUTime", "maxWallClockTime", "MaxRAM"}
    assert values["NumberOfProcessors"] == 8
    *numbers, access = (each.message.partition(": ")[0] for each in found.notes)
    assert (numbers, access) == (names, "open to every VO")


@pytest.mark.parametrize(
    ("attributes", "tree", "words"),
    [
        ("GlueHostBenchmarkSI00 = 400;", "", "open to every VO"),
        ("GlueHostBenchmarkSI00 = 400;", "VO: [cms]", None),
        ('GlueHostBenchmarkSI00 = 400; VO = "cms";', "", None),
        ('GlueCEAccessControlBaseRule = { "VO:cms" };', "", None),
        (
            'GlueCEAccessControlBaseRule = { "VO:cms", "DENY:VOMS:/cms/guests" };',
            "",
            "a denial closes it to all VOs",
        ),
        (
            'GlueCEAccessControlBaseRule = { "VO:cms", " DENY:VO:cms" };',
            "",
            "a denial closes it to all VOs",
        ),
        ('GlueCEAccessControlBaseRule = { "VO:cms", "VOMS:/cms/guests" };', "", "admit no one"),
        ("GlueCEAccessControlBaseRule = {};", "", "an empty list closes it to all VOs"),
        ('GlueCEAccessControlBaseRule = {}; VO = "cms";', "", None),
    ],
)
def test_whom_an_ad_admits_is_noted_where_it_may_surprise(
    attributes: str, tree: str, words: str | None
) -> None:
    config = parse(f"Resources: {{Sites: {{A: {{{tree}}}}}}}")
    found = propose(config, f'[ id = "ce/q"; info = [ {attributes} ] ]', "A")
    assert [each.message for each in found.notes if words is None or words not in each.message] == []
    assert len(found.notes) == (words is not None)
    is_admitted = parse(found.text, 2).usable(QueueAddress(site="A", ce="ce", queue="q"), "cms")
    assert is_admitted is (words is None or "closes" not in words)


def test_the_requirements_of_the_document_are_true_of_it(milano: Configuration) -> None:
    asked = parse_expression(REQUIREMENTS)
    assert queue_class_index.eligible_queues(milano, "egee", asked) == {MILANO}
    poorer = imported(SEED.replace("MaxCPUTime = 172800", "MaxCPUTime = 1500"), site=MILANO.site)
    assert queue_class_index.eligible_queues(poorer, "egee", asked) == frozenset()


@pytest.mark.parametrize(
    ("check", "job", "holds"),
    [
        ("AuthorizationCheck", {"VirtualOrganisation": "EGEE", "CertificateSubject": "/CN=a"}, True),
        ("AuthorizationCheck", {"VirtualOrganisation": "cms", "CertificateSubject": "/CN=a"}, False),
        ("AuthorizationCheck", {"CertificateSubject": "VO:EGEE"}, True),
        ("CloseOutputSECheck", {}, True),
        ("CloseOutputSECheck", {"OutputSE": "gridftp05.cern.ch"}, True),
        ("CloseOutputSECheck", {"OutputSE": "elsewhere.cern.ch"}, False),
    ],
)
def test_its_own_checks_are_true_of_the_right_jobs(
    milano: Configuration, check: str, job: dict[str, Value], holds: bool
) -> None:
    own = milano.ad(MILANO, "egee")
    assert match_expression.parse_match_expression(str(own[check])).is_true(own, job) is holds
    asked = admission.read_admission(own)
    assert asked is not None
    assert (
        check in {why.requirement for why in asked.failing({fold(n): v for n, v in job.items()})}
    ) is not holds


def test_its_state_has_expired_long_ago_and_its_policies_have_not(milano: Configuration) -> None:
    then = milano.at_moment(datetime(2005, 10, 3, 15, 9, 41, tzinfo=UTC)).values(MILANO, "egee")
    now = milano.at_moment(datetime(2005, 10, 3, 15, 9, 42, tzinfo=UTC)).values(MILANO, "egee")
    assert {name for name in then if name not in now} == {
        "GlueCEStateStatus",
        "GlueCEStateFreeCPUs",
        "GlueCEStateWaitingJobs",
        "GlueCEStateTotalJobs",
        "GlueCEStateRunningJobs",
        "GlueCEStateEstimatedResponseTime",
        "GlueCEStateWorstResponseTime",
    }


def test_import_export_import_gives_the_same_tree(milano: Configuration) -> None:
    exported = ce_ads.export_ads(milano)
    assert (exported.queues, exported.left_out) == ((MILANO,), ())
    assert imported(exported.text).source == milano.source


def test_the_same_ad_again_changes_nothing(milano: Configuration) -> None:
    for text in (SEED, ce_ads.export_ads(milano).text):
        again = propose(milano, text)
        assert (again.changes, again.same, again.notes) == ((), (MILANO,), ())
        assert again.text == milano.source


def test_fresh_values_change_what_differs_and_nothing_else(milano: Configuration) -> None:
    fresh = SEED.replace("update_time = 1128351882", "update_time = 1128352882")
    fresh = fresh.replace("GlueCEStateFreeCPUs = 1;", "GlueCEStateFreeCPUs = 9;")
    assert changes(propose(milano, fresh)) == {"update_time": 1128352882, "GlueCEStateFreeCPUs": 9}


def test_what_was_true_earlier_does_not_replace_what_was_true_later(milano: Configuration) -> None:
    stale = SEED.replace("update_time = 1128351882", "update_time = 1128351000")
    proposal = propose(milano, stale)
    assert proposal.changes == ()
    [note] = proposal.notes
    assert "left out: the tree has newer values (update_time 1128351882)" in str(note)


def test_a_dynamic_attribute_that_the_ad_no_longer_has_goes() -> None:
    proposal = propose(parse(TREE), '[id = "ce/q"; update_time = 1300; info = [WaitingJobs = 1]]')
    assert changes(proposal) == {"update_time": 1300, "WaitingJobs": 1, "FreeCPUs": None}
    after = parse(proposal.text)
    assert after.tree["Resources"]["Sites"]["A"]["CEs"]["ce"]["Queues"]["q"] == {  # type: ignore[index]
        "Mark": "mine",
        "VOs": {"cms": {"MaxRAM": 2000}},
        "NodeAttributes": {"SSD": [True, False]},
        "update_time": 1300,
        "expiry_time": 300,
        "WaitingJobs": 1,
    }


def test_what_is_inherited_or_follows_is_not_written_again() -> None:
    config = parse(TREE)
    assert propose(config, ce_ads.export_ads(config).text).changes == ()
    assert propose(config, ce_ads.export_ads(config, vo="cms").text).changes[0].name == "MaxRAM"


def test_a_placeholder_is_written_again_as_it_was_and_not_twice() -> None:
    text = '[id = "ce/q"; Site = "A"; CPUTime = 7200; gluecepolicymaxcputime = 999999]'
    config = imported(text)
    exported = ce_ads.export_ads(config).text
    assert "gluecepolicymaxcputime = 999999;" in exported
    assert imported(exported).source == config.source


def test_what_somebody_wrote_stays_where_an_ad_only_implies_something_else() -> None:
    proposal = propose(parse(TREE), '[id = "ce/q"; GlueHostMainMemoryRAMSize = 1000; FreeCPUs = 3]')
    assert changes(proposal) == {"GlueHostMainMemoryRAMSize": 1000}
    [note] = proposal.notes
    assert str(note) == "A/ce/q: MaxRAM stays 4000, set at CE; the ad implies 1000 (ces.ad:1)"


def test_what_followed_from_the_ad_before_follows_from_the_next() -> None:
    before = imported('[id = "ce/q"; GlueHostBenchmarkSI00 = 400]', site="A")
    proposal = propose(before, '[id = "ce/q"; GlueHostBenchmarkSI00 = 500]')
    assert changes(proposal) == {"GlueHostBenchmarkSI00": 500, "SI00": 500}


def test_a_closed_queue_is_not_switched_off_for_good() -> None:
    config = imported('[id = "ce/q"; info = [GlueCEStateStatus = "Closed"]]', site="A")
    [queue] = config.addresses
    assert config.values(queue, "cms") == {"GlueCEStateStatus": "Closed"}


def test_a_ce_that_is_in_the_tree_stays_at_its_site() -> None:
    proposal = propose(parse(TREE), '[id = "ce/new"; A = 1]')
    assert [str(queue) for queue in proposal.new] == ["A/ce/new"]
    assert [str(q) for q in propose(parse(TREE), '[id = "ce/new"; Site = "B"]').new] == ["B/ce/new"]


@pytest.mark.parametrize(
    ("text", "site", "said"),
    [
        ('[id = "x/q"]', None, r"CE ad x/q: it names no site .*use --site SITE \(ces.ad:1\)"),
        ('[id = "x/q"]', "a b", r"'a b' is not a valid name of a site"),
        (
            '[id = "x/q"]\n[id = "x/q"; Site = "A"]',
            "A",
            r"defined twice, the first time in ces.ad:1 \(ces.ad:2\)",
        ),
    ],
)
def test_an_ad_that_has_no_place_is_refused(text: str, site: str | None, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        propose(parse(EMPTY), text, site)


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("MaxRamm = 5", "not carried over: unknown parameter, did you mean MaxRAM?"),
        ('MaxRAM = "much"', "not carried over: 'much' is not allowed here, allowed is a number of MB"),
        ("MaxRAM = 1000 * 2", "not carried over: an expression, where the system reads a value"),
        ("Queues = 5", "not carried over: unknown level"),
        ("NodeAttributes = 5", "not carried over: the tree has a section of this name"),
        ("'a/b' = 5", "not carried over: 'a/b' is not a valid name of a parameter"),
        ("x = undefined", "left out: undefined is the same as absent"),
    ],
)
def test_what_the_tree_cannot_hold_is_named_and_the_rest_is_carried(attribute: str, said: str) -> None:
    proposal = propose(parse(TREE), f'[id = "ce/q"; FreeCPUs = 3;\n{attribute};\nGood = 1]')
    assert changes(proposal) == {"Good": 1}
    [note] = proposal.notes
    assert said in str(note)
    assert note.line == 2


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("9223372036854775807", "9223372036854775807 is out of range, integers reach to 9007199254740991"),
        ("-18446744073709551615", "18446744073709551615 is out of range"),
        ("9" * 5000, f"{'9' * 40}… is out of range"),
        ("{1, 9007199254740992}", "9007199254740992 is out of range"),
        ("[a = [b = 9007199254740992]]", "9007199254740992 is out of range"),
        ("other.x < 9007199254740992", "9007199254740992 is out of range"),
        ("1e999", "1e999 is out of range"),
        ("0777", "0777 has a leading zero"),
        ("0x1F", "0x1F is hexadecimal"),
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        '[id = "ce/q"; FreeCPUs = 3;\nBad = {};\nGood = 1]',
        '[id = "ce/q"; info = [FreeCPUs = 3;\nBad = {}; Good = 1]]',
        'id = "ce/q"\nBad = {}\nFreeCPUs = 3\nGood = 1\n',
    ],
)
def test_a_number_that_programs_read_differently_is_left_out_alone(
    form: str, written: str, said: str
) -> None:
    proposal = propose(parse(TREE), form.replace("{}", written))
    assert changes(proposal) == {"Good": 1}
    [note] = proposal.notes
    assert note.path == "A/ce/q/Bad"
    assert note.message.startswith(f"not carried over: {said}")
    assert note.line == 2


def test_a_restriction_with_such_a_number_closes_the_queue() -> None:
    proposal = propose(parse(TREE), '[id = "ce/q"; FreeCPUs = 3; Requirements = other.x < 9999999999999999]')
    assert changes(proposal) == {"Enabled": False}


def test_a_time_that_is_such_a_number_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidInput, match=r"update_time: 9+ is out of range.*\(ces.ad:2\)"):
        propose(parse(TREE), '[id = "ce/q";\nupdate_time = 99999999999999999999; A = 1]')


def test_lists_of_lists_and_ads_are_carried_as_their_text() -> None:
    text = '[id = "ce/q"; a = {{1}, {2}}; b = [c = {}]; d = {1, other.x}; e = {}; f = -1.5]'
    config = imported(text, site="A")
    [queue] = config.addresses
    values = config.values(queue, "cms")
    assert values["Expressions"] == ("a", "b", "d")
    assert (values["a"], values["b"], values["e"], values["f"]) == ("{{1}, {2}}", "[c = {}]", (), -1.5)
    exported = ce_ads.export_ads(config).text
    assert "a = {{1}, {2}};" in exported
    assert "Expressions" not in exported
    assert imported(exported).source == config.source


def test_an_attribute_that_is_no_expression_any_more_leaves_the_list() -> None:
    before = imported('[id = "ce/q"; a = other.x; b = other.y]', site="A")
    assert changes(propose(before, '[id = "ce/q"; a = 5]')) == {"Expressions": ("b",), "a": 5}
    assert changes(propose(before, '[id = "ce/q"; a = 5; b = 6]')) == {"Expressions": None, "a": 5, "b": 6}
    assert changes(propose(before, '[id = "ce/q"; a = other.z]')) == {"a": "other.z"}


def test_expressions_of_the_tree_are_exported_as_such() -> None:
    text = ce_ads.export_ads(parse(TREE), "A/ce/r").text
    for line in ("Requirements = other.Memory < 5;", "Mine = TARGET.x;", 'Text = "TARGET.x";'):
        assert f"    {line}\n" in text


def test_a_part_of_the_tree_is_exported_as_a_vo_gets_it() -> None:
    config = parse(TREE)
    assert len(ce_ads.export_ads(config).queues) == 2
    for path in ("A/ce/q", "Resources/Sites/A/CEs/ce/Queues/q"):
        assert [str(queue) for queue in ce_ads.export_ads(config, path).queues] == ["A/ce/q"]
    assert "MaxRAM = 2000;" in ce_ads.export_ads(config, "A/ce", "cms").text
    with pytest.raises(PathNotFound, match="did you mean A/ce/q"):
        ce_ads.export_ads(config, "A/ce/qq")


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).map(lambda name: f"X{name}")
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
)


@given(st.dictionaries(NAMES, SCALARS | st.lists(SCALARS, max_size=3).map(tuple), max_size=6))
def test_any_value_goes_out_and_in_again(values: dict[str, Value]) -> None:
    tree = {"Resources": {"Sites": {"S": {"CEs": {"C": {"Queues": {"Q": {}}}}}}}}

    section = tree["Resources"]["Sites"]["S"]["CEs"]["C"]["Queues"]["Q"]
    folded: set[str] = set()
    for name, value in values.items():
        if name.lower() not in folded:
            folded.add(name.lower())
            section[name] = list(value) if isinstance(value, tuple) else value
    config = parse(yaml_writer.to_yaml(tree))
    again = imported(ce_ads.export_ads(config).text)
    assert again.tree == config.tree or not section


def test_an_ad_changes_the_queue_of_its_address_in_any_case() -> None:
    tree = "Resources: {Sites: {A: {CEs: {ce: {Queues: {q: {MaxRAM: 1}}}}}}}\n"
    proposal = propose(parse(tree), '[id = "CE/Q"; MaxRAM = 2]', site="a")
    assert [(str(each.queue), each.before, each.after) for each in proposal.changes] == [("A/ce/q", 1, 2)]
    assert (proposal.new, proposal.notes) == ((), ())


def test_a_dropped_expression_is_not_listed() -> None:
    before = parse("Resources: {Sites: {A: {CEs: {ce: {Queues: {q: {CPUTime: 1}}}}}}}")
    found = propose(before, '[id = "ce/q"; info = [Requiremnts = other.Owner == "x"; MaxRAM = 1]]')
    [queue] = found.proposal.after.addresses
    assert "Expressions" not in found.proposal.after.values(queue, "")
    assert found.notes
