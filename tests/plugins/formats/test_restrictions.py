"""No import opens what its source keeps closed: it closes the node or is refused."""

from typing import Any

import pytest

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats import dirac_text
from cs_config.formats.importers import ImportedConfiguration
from cs_config.tree.configuration import Configuration
from cs_config.versions.store import NOTHING
from pilotage.plugins.formats import ce_ads, ce_ads_import, dirac_import, glidein_factory

VOS = ("alice", "cms", "lhcb")


def admitted(config: Configuration) -> dict[str, set[str]]:
    """The VOs of each queue, as a text that is stored and read again has them."""
    again = validate.parse(config.source, "again.yaml")
    return {str(each): {vo for vo in VOS if again.usable(each, vo)} for each in again.addresses}


def cfg(text: str, config: Configuration = NOTHING) -> ImportedConfiguration:
    return dirac_import.propose_dirac(config, {"dirac.cfg": text})


def site(inside: str = "", ce: str = "", queue: str = "", more: str = "") -> str:
    """A text in today's layout with one site of two CEs, each with one queue."""
    ces = "\n".join(f"{name} {{\n{ce}\nQueues {{\nq {{\n{queue}\n}}\n}}\n}}" for name in ("ce1", "ce2"))
    return (
        f"Resources {{\nSites {{\nLCG {{\nLCG.A.ch {{\n{inside}\nCEs {{\n{ces}\n}}\n}}\n}}\n}}\n{more}\n}}\n"
    )


def defaults(inside: str, kind: str = "CEDefaults") -> str:
    return f"Computing {{\n{kind} {{\n{inside}\n}}\n}}"


Q1, Q2 = "LCG.A.ch/ce1/q", "LCG.A.ch/ce2/q"


def test_a_list_among_the_defaults_holds_at_every_ce():
    found = cfg(site(more=defaults("VO = lhcb, cms")))
    assert admitted(found.proposal.after) == {Q1: {"lhcb", "cms"}, Q2: {"lhcb", "cms"}}
    assert found.notes == ()


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (site(inside="VO = lhcb, cms", more=defaults("VO = lhcb")), {"lhcb"}),
        (site(ce="VO = cms", more=defaults("VO = lhcb")), {"cms"}),
        (site(ce="CEType = ARC", more=defaults("VO = lhcb", "arc")), {"lhcb"}),
        (site(more="Computing {\nCEDefaults {\nCEType = ARC\n}\nARC {\nVO = lhcb\n}\n}"), {"lhcb"}),
        (site(inside="Enabled = true", more=defaults("Enabled = no")), set()),
        (site(inside="VO = lhcb, cms\nCEs {\nVO = cms\n}").replace("}\nCEs {\nce1", "ce1", 1), {"cms"}),
        (site(queue="VO = lhcb,"), {"lhcb"}),
        (site(queue="VO ="), set(VOS)),
        (site(queue="VO = 1, cms"), {"cms"}),
        (site(queue="Enabled = yes"), set(VOS)),
        (site(queue="VO = lhcb\nVO += cms"), {"lhcb", "cms"}),
    ],
)
def test_lists_of_vos_are_carried_over(text: str, allowed: set[str]):
    assert admitted(cfg(text).proposal.after) == {Q1: allowed, Q2: allowed}


@pytest.mark.parametrize(
    "restriction",
    [
        "VO = lhcb cms",
        "VO = lhcb # only",
        "vo = lhcb\nVO = cms",
        "VOs = lhcb",
        "Enabled = perhaps",
        "Enable = False",
        "RequiredTag {\na = b\n}",
        "RequiredTags = a, b",
        "Requirements = other.A ==",
        "Checks = Mine\nMine = other.A ==",
        "Throttle {\nPolicy = level99\n}",
        "RunningLimit {\nJobType {\nMerge = few\n}\n}",
        "MatchingDelay {\nJobType {\nMerge = long\n}\n}",
        "BannedVO = cms",
        "AllowedVOs = lhcb",
        "OwnerGroup = lhcb_mc",
        "Status = Closed",
        "MaxWaitingJobs = some",
        "NodeAttributes {\nVO = lhcb\n}",
        "VOs {\nEnabled = False\n}",
        "VOs {\nlhcb = False\n}",
    ],
)
@pytest.mark.parametrize("level", ["inside", "ce", "queue"])
def test_a_restriction_that_cannot_be_carried_over_closes_its_node(restriction: str, level: str):
    found = cfg(site(**{level: restriction}))
    assert admitted(found.proposal.after) == {Q1: set(), Q2: set()}
    assert any("closed" in note.message and "LCG.A.ch" in note.path for note in found.notes)
    assert cfg(site(**{level: restriction}), found.proposal.after).proposal.differences == ()


def again(name: str, inside: str) -> str:
    """A text in which a node stands a second time, at its end and in other letters."""
    inner = f"{name.upper()} {{\n{inside}\n}}\n"
    text = site()
    end = {"LCG.A.ch": "}\n}\n\n}", "ce1": "}\n}\n}\n}\n\n}", "q": "}\n}\nce2"}[name]
    return text.replace(end, inner + end, 1)


@pytest.mark.parametrize("inside", ["VO = lhcb", "Queues {\nq {\nEnabled = no\n}\n}"])
@pytest.mark.parametrize("name", ["LCG.A.ch", "ce1", "q"])
def test_a_node_that_stands_twice_in_other_letters_is_closed_if_the_second_one_restricts(
    name: str, inside: str
):
    found = cfg(again(name, inside))
    assert admitted(found.proposal.after)[Q1] == set()
    assert any("closed" in note.message for note in found.notes)
    assert admitted(cfg(again(name, "")).proposal.after)[Q1] == set(VOS)


def test_a_restriction_beside_queues_closes_their_ce():
    found = cfg(site().replace("Queues {", "Queues {\nVO = lhcb", 1))
    assert admitted(found.proposal.after) == {Q1: set(), Q2: set(VOS)}
    harmless = cfg(site().replace("Queues {", "Queues {\nComment = none", 1))
    assert admitted(harmless.proposal.after) == {Q1: set(VOS), Q2: set(VOS)}


def test_a_node_is_closed_also_for_the_vos_that_it_is_open_for():
    tree = "Resources: {Sites: {LCG.A.ch: {VOs: {cms: {Enabled: true}}, CEs: {ce1: {Queues: {q: }}}}}}\n"
    found = cfg(site(inside="VO = a b\nVOs {\nlhcb {\nEnabled = true\n}\n}"), validate.parse(tree, "x"))
    assert admitted(found.proposal.after) == {Q1: set(), Q2: set()}


def test_a_wrong_value_of_one_vo_closes_the_node_for_that_vo():
    found = cfg(site(inside="VOs {\ncms {\nEnabled = perhaps\n}\n}"))
    assert admitted(found.proposal.after) == {Q1: {"alice", "lhcb"}, Q2: {"alice", "lhcb"}}


def test_what_restricts_nothing_closes_nothing():
    found = cfg(
        site(queue="MaxRAMM = 5\nStatus = Production\nOther = 1", inside="Cloud {\nx {\nVO = a\n}\n}")
    )
    assert admitted(found.proposal.after) == {Q1: set(VOS), Q2: set(VOS)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (site(more="VO = lhcb"), "Resources/VO"),
        (site(more="Computing {\nVO = lhcb\n}"), "Resources/Computing/VO"),
        (site(more=defaults("VOs {\ncms {\nEnabled = false\n}\n}")), "Resources/Computing/CEDefaults/VOs"),
        (site(more="Domains {\nEGI {\nCommunities = lhcb\n}\n}"), "Resources/Domains/EGI"),
        ("Resources {\nSites {\nA {\nLCG.A.ch {\nVO = a\n}\n}\nB {\nLCG.A.ch {\nVO = b\n}\n}\n}\n}", "twice"),
        ("Operations {\nlhcb {\nJobDescription {\nAllowedJobTypes {\na = b\n}\n}\n}\n}", "AllowedJobTypes"),
        ("Operations {\nlhcb {\nJobScheduling {\nRunningLimit = 5\n}\n}\n}", "RunningLimit"),
        ("Operations {\nlhcb {\nProd {\nJobScheduling {\nRunningLimit {\n}\n}\n}\n}\n}", "lhcb/Prod"),
        ("Operations {\nlhcb {\nLimits {\nWaitingJobsPerOwner = many\n}\n}\n}", "WaitingJobsPerOwner"),
    ],
)
def test_a_restriction_that_has_no_node_refuses_the_import(text: str, said: str):
    with pytest.raises(ConfigError, match=said):
        cfg(text)


def rfc5(inside: str = "", container: str = "", ce: str = "", queues: str = "", queue: str = "") -> str:
    queue_section = f"Queues {{\n{queues}\nq {{\n{queue}\n}}\n}}"
    computing = f"Computing {{\n{container}\nce1 {{\n{ce}\n{queue_section}\n}}\n}}"
    return f"Resources {{\nSites {{\nA {{\nDomains = EGI\n{inside}\n{computing}\n}}\n}}\n}}\n"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (rfc5(container="Communities = lhcb"), {"lhcb"}),
        (rfc5(queues="Communities = lhcb"), {"lhcb"}),
        (rfc5(inside="Communities = lhcb, cms", container="VO = cms"), {"cms"}),
        (rfc5(ce="Communities = lhcb, cms\nVO = cms"), {"cms"}),
        (rfc5(ce="Communities = lhcb cms"), set()),
        (rfc5(ce="alice {\nEnabled = false\n}"), set()),
        (rfc5(container="Communities = cms, lhcb\ncms {\nEnabled = no\n}"), {"lhcb"}),
        (rfc5(container="VOs {\ncms {\nEnabled = no\n}\n}"), {"alice", "lhcb"}),
        (rfc5(queues="VOs {\ncms {\nEnabled = no\n}\n}"), {"alice", "lhcb"}),
        (rfc5(inside="VOs = lhcb\nCommunities = cms\ncms {\nMaxRAM = 1\n}"), set()),
        (rfc5(inside="Communities = cms\ncms {\nEnabled = no\n}\nVOs {\ncms {\nMaxRAM = 1\n}\n}"), set()),
    ],
)
def test_the_layout_of_rfc_5_loses_no_restriction(text: str, allowed: set[str]):
    assert admitted(cfg(text).proposal.after) == {"EGI.A/ce1/q": allowed}


def test_lists_of_one_are_lists_in_operations_and_registry():
    text = """
    Operations {
      lhcb {
        JobDescription {
          AllowedJobTypes = User
        }
        JobScheduling {
          RescheduleDelays = 60
        }
      }
    }
    Registry {
      Groups {
        lhcb_user {
          VO = lhcb
          Users = ada
          Properties = NormalUser
        }
      }
    }
    """
    found = cfg(text)
    config: Any = found.proposal.after
    assert found.notes == ()
    assert config.vo_operations["lhcb"].job_description.allowed_job_types == ("User",)
    assert config.vo_operations["lhcb"].job_scheduling.reschedule_delays == (60,)
    group = config.registry.groups["lhcb_user"]
    assert (group.users, group.properties) == (("ada",), ("NormalUser",))


def factory_xml(attributes: str = "", enabled: str = "True", more: str = "", vos: str = "CMS,LHCb") -> str:
    supported = f'<attr name="GLIDEIN_Supported_VOs" value="{vos}"/>' if vos else ""
    return f"""<glidein><entries><entry name="q" gatekeeper="ce1" gridtype="arc" enabled="{enabled}">{more}
        <attrs><attr name="GLIDEIN_Site" value="A"/>{supported}{attributes}</attrs>
        </entry></entries></glidein>"""


def factory_yaml(entry: str) -> str:
    return f"A: {{ce1: {{q: {{gridtype: arc, {entry}}}}}}}\n"


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (factory_xml(), {"cms", "lhcb"}),
        (factory_xml(vos="CMS LHCb"), {"cms", "lhcb"}),
        (factory_xml(vos=""), set()),
        (factory_xml(vos="(CMS)"), set()),
        (factory_xml(enabled="yes"), set()),
        (factory_xml(vos="", attributes='<attr name="glidein_supported_vos" value="CMS"/>'), {"cms"}),
        (factory_xml(attributes='<attr name="GLIDEIN_SUPPORTED_VOS" value="CMS"/>'), set()),
        (factory_xml(vos="", attributes='<attr name="GLIDEIN_Supported_VOs" type="expr" value="x"/>'), set()),
        (factory_xml(attributes='<attr name="GLIDEIN_In_Downtime" value="True"/>'), set()),
        (factory_xml(attributes='<attr name="GLIDEIN_In_Downtime" value="False"/>'), {"cms", "lhcb"}),
        (factory_xml(attributes='<attr name="GLIDEIN_Entry_Start" value="x > 1"/>'), set()),
        (factory_xml(more='<allow_frontends><allow_frontend name="CMS"/></allow_frontends>'), set()),
        (factory_xml(more='<config><max_jobs><per_entry glideins="few"/></max_jobs></config>'), set()),
        (factory_yaml("attrs: {GLIDEIN_Supported_VOs: {value: CMS}}"), {"cms"}),
        (factory_yaml("attrs: {GLIDEIN_Supported_VOs: CMS}"), {"cms"}),
        (factory_yaml("attrs: {GLIDEIN_Supported_VOs: {value: [CMS, LHCb]}}"), {"cms", "lhcb"}),
        (factory_yaml("attrs: {GLIDEIN_Supported_VOs: {value: {a: CMS}}}"), set()),
        (factory_yaml("attrs: [GLIDEIN_Supported_VOs]"), set()),
        (factory_yaml("enabled: off, attrs: {GLIDEIN_Supported_VOs: CMS}"), set()),
        (factory_yaml("allow_frontends: [CMS], attrs: {GLIDEIN_Supported_VOs: CMS}"), set()),
    ],
)
def test_entries_of_a_factory_lose_no_restriction(text: str, allowed: set[str]):
    found = glidein_factory.propose_factory(NOTHING, {"factory": text})
    assert list(admitted(found.proposal.after).values()) == [allowed]
    assert found.notes or allowed
    again = glidein_factory.propose_factory(found.proposal.after, {"factory": text})
    assert again.proposal.differences == ()


def test_an_entry_without_vos_leaves_the_list_that_somebody_wrote():
    tree = "Resources: {Sites: {OSG.A: {CEs: {ce1: {Queues: {q: {VO: [cms]}}}}}}}\n"
    found = glidein_factory.propose_factory(validate.parse(tree, "x"), {"factory": factory_xml(vos="")})
    assert admitted(found.proposal.after) == {"OSG.A/ce1/q": {"cms"}}


def test_a_tree_in_our_form_loses_no_restriction():
    for inside in ("VO: 'a b', CEs: {ce1: ", "CEs: {VO: [lhcb], ce1: "):
        text = f"Resources:\n  Sites:\n    A: {{{inside}{{Queues: {{q: }}}}}}}}\n"
        found = glidein_factory.propose_factory(NOTHING, {"ours.yaml": text})
        assert admitted(found.proposal.after) == {"A/ce1/q": set()}
    with pytest.raises(ConfigError, match="Resources/Sites/VO"):
        glidein_factory.propose_factory(NOTHING, {"ours.yaml": "Resources:\n  Sites: {VO: [lhcb]}\n"})


def test_an_entry_that_stands_twice_is_closed():
    text = factory_xml().replace("</entries>", factory_xml(vos="ALICE").partition("<entries>")[2], 1)
    found = glidein_factory.propose_factory(
        NOTHING, {"factory": text.replace("</glidein></glidein>", "</glidein>")}
    )
    assert list(admitted(found.proposal.after).values()) == [set()]


def imported_ads(
    text: str, config: Configuration = NOTHING, at: str | None = "A"
) -> ce_ads_import.AdProposal:
    return ce_ads_import.propose_ads(config, {"ces.ad": text}, site=at)


def ad(inside: str) -> str:
    return f'[ id = "ce1/q"; info = [ {inside} ] ]'


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (ad('GlueCEAccessControlBaseRule = { "VO:cms", "vo:lhcb" }'), {"cms", "lhcb"}),
        (ad('GlueCEAccessControlBaseRule = { "VO:cms", "VOMS:/lhcb/Role=production", "/CN=Ada" }'), {"cms"}),
        (ad('GlueCEAccessControlBaseRule = "VO:cms"'), {"cms"}),
        (ad('GlueCEAccessControlBaseRule = { "VO:cms lhcb" }'), set()),
        (ad('GlueCEAccessControlBaseRule = { "DENY:VO:cms", "VO:lhcb" }'), set()),
        (ad("GlueCEAccessControlBaseRule = { }"), set()),
        (ad("GlueCEAccessControlBaseRule = undefined"), set()),
        (ad("GlueCEAccessControlBaseRule = other.A"), set()),
        (ad('VO = "cms, lhcb"'), set()),
        (ad("VO = 5"), set()),
        (ad("VO = undefined"), set()),
        (ad("VO = other.A"), set()),
        (ad('VOs = "cms"; CEs = 5; '), set()),
        (ad('Enabled = "false"'), set()),
        (ad("RequiredTag = 5"), set()),
        (ad("Requirements = undefined"), set()),
        (ad('Checks = { "Mine" }; Mine = undefined'), set()),
        (ad('AllowedVOs = { "cms" }'), set()),
        (ad('RequiredTags = { "a" }'), set()),
        ('[ id = "ce1/q"; Derived = { "VO" }; info = [ VO = "cms" ] ]', {"cms"}),
        (
            '[id="ce1/q"; Derived={"GlueCEAccessControlBaseRule"}; GlueCEAccessControlBaseRule="VO:cms"]',
            {"cms"},
        ),
        (ad("Good = 1"), set(VOS)),
    ],
)
def test_ads_lose_no_restriction(text: str, allowed: set[str]):
    found = imported_ads(text)
    after = validate.parse(found.text, "x")
    assert admitted(after) == {"A/ce1/q": allowed}
    again = imported_ads(text, after)
    assert again.changes == ()


def test_who_may_enter_follows_from_the_rules_also_where_they_are_dynamic():
    tree = "Resources: {Computing: {DynamicAttributes: ['GlueCE*']}}\n"
    found = imported_ads(ad('GlueCEAccessControlBaseRule = "VO:cms"'), validate.parse(tree, "x"))
    assert admitted(validate.parse(found.text, "x")) == {"A/ce1/q": {"cms"}}


TREES = [
    "{VO: [], CEs: {ce1: {Queues: {q: {}}}}}",
    "{VO: [cms], CEs: {ce1: {VO: [], Queues: {q: {}}}}}",
    "{VO: ['1'], CEs: {ce1: {Queues: {q: {}}}}}",
    '{Requirements: "other.A == 1 ||\\n other.B == 2", CEs: {ce1: {Queues: {q: {}}}}}',
    "{Enabled: false, CEs: {ce1: {Enabled: true, Queues: {q: {}}}}}",
    "{VOs: {cms: {Enabled: false}}, CEs: {ce1: {Queues: {q: {}}}}}",
    "{vo: [cms], VOs: {cms: {Enabled: false}, lhcb: {MaxRAM: 1}}, CEs: {ce1: {Queues: {q: {}}}}}",
    "{VO: [cms, lhcb], VOs: {cms: {RequiredTag: x}}, CEs: {ce1: {Queues: {q: {}}}}}",
    "{VO: [lhcb], VOs: {cms: {VO: [cms], Enabled: true}}, CEs: {ce1: {Queues: {q: {VO: []}}}}}",
]


@pytest.mark.parametrize("inside", TREES)
def test_an_export_and_its_import_lose_no_restriction(inside: str):
    config = validate.parse(f"Resources: {{Sites: {{LCG.A.ch: {inside}}}}}\n", "x")
    before = admitted(config)
    back = cfg(dirac_text.export_dirac(config.tree, with_disabled=True).text).proposal.after
    ads = validate.parse(imported_ads(ce_ads.export_ads(config).text, at=None).text, "x")
    for after in (back, ads):
        if "Requirements" in inside:
            assert after.values(after.addresses[0], "").get("Requirements") or not admitted(after)[Q1]
        assert all(admitted(after)[queue] <= before[queue] for queue in before)


def test_values_of_single_vos_that_restrict_are_not_opened_by_an_export_of_ads():
    config = validate.parse(f"Resources: {{Sites: {{LCG.A.ch: {TREES[7]}}}}}\n", "x")
    exported = ce_ads.export_ads(config)
    assert admitted(validate.parse(imported_ads(exported.text, at=None).text, "x")) == {Q1: {"lhcb"}}
    assert exported.narrowed == (f"{Q1}: cms",)


def test_a_node_with_two_restrictions_named_twice_is_closed() -> None:
    found = cfg(
        """
        Resources
        {
          Sites
          {
            LCG
            {
              LCG.A.ch
              {
                VO = alice
                vo = cms
                Enabled = True
                enabled = True
              }
            }
          }
        }
        """
    )
    assert found.proposal.after.tree["Resources"]["Sites"]["LCG.A.ch"] == {  # type: ignore[index]
        "VO": "alice",
        "Enabled": False,
    }


def test_a_node_that_loses_a_limit_in_an_export_is_disabled_there():
    inside = "{RunningLimit: {JobName: {a=b: 5}}, CEs: {ce1: {Queues: {q: {}}}}}"
    config = validate.parse(f"Resources: {{Sites: {{LCG.A.ch: {inside}}}}}\n", "x")
    exported = dirac_text.export_dirac(config.tree, with_disabled=True)
    assert admitted(cfg(exported.text).proposal.after) == {Q1: set()}
    assert any("Enabled = False" in each for each in exported.left_out)


_TWICE = "VO = alice, cms\nVO = lhcb"


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        (site(queue=_TWICE), {Q1, Q2}),
        (site(ce=_TWICE), {Q1, Q2}),
        (site(inside=_TWICE), {Q1, Q2}),
        (site(queue="VO = lhcb\nVO ="), {Q1, Q2}),
        (site(queue="VO = cms\nVO = lhcb\nVO = lhcb"), {Q1, Q2}),
        (site(queue="RequiredTag = x\nRequiredTag = y"), {Q1, Q2}),
        (site(queue="Enabled = False\nEnabled = True"), {Q1, Q2}),
        (site(queue="MaxTotalJobs = 0\nMaxTotalJobs = 5"), {Q1, Q2}),
        (site(queue="Throttle {\nMaxIdle = 0\nMaxIdle = 5\n}"), {Q1, Q2}),
        (site(queue="Checks = A,\nA = true\nA = 1 > 2\nA = true"), {Q1, Q2}),
        (site(queue="BannedVO = cms\nBannedVO = lhcb"), {Q1, Q2}),
        (site(more=defaults(_TWICE)), {Q1, Q2}),
        (site(ce="RequiredTag = z", more=defaults("RequiredTag = x\nRequiredTag = y")), {Q1, Q2}),
        (site(inside="CEs {\nVO = cms\nVO = lhcb\n}").replace("}\nCEs {\nce1", "ce1", 1), {Q1, Q2}),
        (rfc5(queue="Communities = cms\nCommunities = lhcb"), {"EGI.A/ce1/q"}),
        (rfc5(inside="Communities = cms\nCommunities = lhcb"), {"EGI.A/ce1/q"}),
        # Nothing is lost.
        (site(queue="VO = lhcb\nVO = lhcb"), set()),
        (site(queue="VO =\nVO = lhcb"), set()),
        (site(queue="MaxRAM = 5000\nMaxRAM = 4000"), set()),
        (site(ce="VO = lhcb", more=defaults(_TWICE)), set()),
    ],
)
def test_a_restriction_that_is_stated_again_closes_its_node(text: str, closed: set[str]):
    found = cfg(text)
    assert {each for each, vos in admitted(found.proposal.after).items() if not vos} == closed
    assert any("stated again in line" in note.message for note in found.notes)
    notes = [note for note in found.notes if note.message.startswith("closed")]
    assert all(note.line for note in notes)
    assert bool(notes) is bool(closed)


def test_an_option_that_is_stated_again_is_noted_and_the_last_one_counts():
    found = cfg(site(inside="MaxRAM = 5000\nMaxRAM = 6000\nMaxRAM = 4000"))
    [queue, _] = found.proposal.after.addresses
    assert found.proposal.after.values(queue, "")["MaxRAM"] == 4000
    [note] = found.notes
    assert str(note) == (
        "Resources/Sites/LCG/LCG.A.ch/MaxRAM: stated again in line 7, which counts, not in 5, 6 (dirac.cfg:7)"
    )


@pytest.mark.parametrize(
    "inside",
    [
        "AllowedJobTypes = User\nAllowedJobTypes = Test",
        "RunningLimit {\nLCG.A.ch {\nJobType {\nUser = 0\nUser = 5\n}\n}\n}",
    ],
)
def test_a_restriction_of_all_jobs_that_is_stated_again_is_refused(inside: str):
    text = f"Operations {{\nDefaults {{\nJobScheduling {{\n{inside}\n}}\n}}\n}}\n"
    with pytest.raises(ConfigError, match="stated again in line"):
        cfg(text)


@pytest.mark.parametrize(("option", "keyword"), [("MaxCPUTime", "CPUTime"), ("MaxPriority", "Priority")])
def test_a_bound_that_refuses_every_job_without_the_keyword_is_refused_with_its_line(
    option: str, keyword: str
):
    text = f"Operations {{\nDefaults {{\nJobDescription {{\nMaxInputData = 10\n{option} = 0\n}}\n}}\n}}\n"
    with pytest.raises(ConfigError, match="is too large, allowed is at most 0") as error:
        cfg(text)
    [problem] = error.value.problems
    assert problem.path == f"Operations/Defaults/JobDescription/{keyword}/default"
    assert (problem.file, problem.line) == ("dirac.cfg", 5)
