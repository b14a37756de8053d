"""Options of DIRAC's `Operations` and `Registry`, as genuine configurations have them."""

from datetime import timedelta
from typing import Any

import pytest

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats import dirac_text
from cs_config.formats.importers import ImportedConfiguration
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.source.sections import Tree
from cs_config.versions.store import NOTHING
from pilotage.plugins.formats import dirac_import

VOS = "Registry { VO { lhcb { } cms { } } }\n"
LIMITS = """
RunningLimit { LCG.CERN.ch { JobType { Merge = 0 } } }
MatchingDelay { LCG.CERN.ch { JobType { Merge = 10 } } }
"""


def _import(text: str) -> ImportedConfiguration:
    return dirac_import.propose_dirac(NOTHING, {"all.cfg": VOS + text})


def _options(text: str, vo: str = "lhcb") -> VoOptions:
    return options_for(_import(text).proposal.after, vo)


def _tree(text: str) -> Any:
    found: Tree = _import(text).proposal.after.tree
    return found


def _notes(text: str) -> str:
    return "\n".join(map(str, _import(text).notes))


def _scheduling(defaults: str, of_lhcb: str = "") -> str:
    return f"""
    Operations
    {{
      Defaults
      {{
        JobScheduling
        {{
          {defaults}
        }}
      }}
      lhcb
      {{
        JobScheduling
        {{
          {of_lhcb}
        }}
      }}
    }}
    """


def test_defaults_and_bounds_of_keywords_are_those_of_declared_names() -> None:
    description = """
    Operations
    {
      Defaults
      {
        JobDescription
        {
          DefaultCPUTime = 7200
          MinCPUTime = 100
          MaxCPUTime = 1080000
          MaxPriority = 20
          MaxInputData = 500
          AllowedJobTypes = User
        }
      }
    }
    """
    found = _tree(description)["Operations"]["Defaults"]["JobDescription"]
    assert found == {
        "CPUTime": {"default": 7200, "min": 100, "max": 1_080_000},
        "Priority": {"max": 20},
        "MaxInputData": 500,
        "AllowedJobTypes": "User",
    }
    assert _options(description).job_description.allowed_job_types == ("User",)


def test_limits_that_dirac_does_not_check_are_left_out_and_told() -> None:
    off = _scheduling(f"CheckJobLimits = False\n{LIMITS}")
    assert _options(off).job_scheduling.running_limit == ()
    assert _options(off).job_scheduling.matching_delay != ()
    assert "RunningLimit: not carried over: CheckJobLimits = False" in _notes(off)
    on = _scheduling(f"CheckJobLimits = True\n{LIMITS}")
    assert _options(on).job_scheduling.running_limit != ()
    assert _notes(on) == ""


def test_a_vo_may_switch_the_limits_of_all_on_or_off() -> None:
    for switch, names in (("CheckJobLimits", "running_limit"), ("CheckMatchingDelay", "matching_delay")):
        off = _scheduling(LIMITS, f"{switch} = False")
        assert getattr(_options(off).job_scheduling, names) == ()
        assert getattr(_options(off, "cms").job_scheduling, names) != ()
        on = _scheduling(f"{switch} = no\n{LIMITS}", f"{switch} = yes")
        assert getattr(_options(on).job_scheduling, names) != ()
        assert getattr(_options(on, "cms").job_scheduling, names) == ()


def test_share_corrections_that_are_started_are_carried_over() -> None:
    text = _scheduling("""
    EnableSharesCorrection = True
    ShareCorrections
    {
      ShareCorrectorsToStart = WMSHistory
      WMSHistory
      {
        GroupsInstance
        {
          MaxGlobalCorrection = 4
          Week { TimeSpan = 604800 }
          Day
          {
            TimeSpan = 86400
            Weight = 20
            MaxCorrection = 2
          }
        }
        UserInstance
        {
          Group = lhcb_user
          UpdateHistoryPeriod = 900
        }
      }
      Other { X { Y = 1 } }
    }
    """)
    groups, users = _options(text).job_scheduling.corrections
    assert (groups.group, groups.max_global_correction, users.group) == (None, 4, "lhcb_user")
    assert [(each.time_span, each.weight) for each in groups.slices] == [(604_800, 1), (86_400, 20)]
    assert "ShareCorrections/Other: not carried over" in _notes(text)
    assert timedelta(seconds=groups.slices[0].time_span) == timedelta(days=7)


def test_shares_and_limits_are_carried_over_and_what_is_not_is_told() -> None:
    text = (
        _scheduling(f"CheckJobLimits = True\nCheckMatchingDelay = True\nSiteShares = 3\n{LIMITS}")
        + """
    Registry
    {
      VO
      {
        lhcb { }
      }
      Groups
      {
        lhcb_prod
        {
          VO = lhcb
          JobShare = 2000
          Properties = JobSharing, NormalUser
          VOMSRole = /lhcb/Role=production
        }
        lhcb_user
        {
          VO = lhcb
          JobShare = 12.5
          AllowBackgroundTQs = True
        }
        lhcb_test
        {
          VO = lhcb
          JobShare = much
        }
      }
    }
    """
    )
    found = dirac_import.propose_dirac(NOTHING, {"all.cfg": text})
    groups = found.proposal.after.registry.groups
    assert {name: group.job_share for name, group in groups.items()} == {
        "lhcb_prod": 2000,
        "lhcb_user": 12.5,
        "lhcb_test": 1000,
    }
    assert groups["lhcb_user"].allow_background_tqs
    assert "JobSharing" in groups["lhcb_prod"].properties
    scheduling = options_for(found.proposal.after, "lhcb").job_scheduling
    assert [(each.value, each.most) for each in scheduling.running_limit] == [("Merge", 0)]
    assert [(each.value, each.seconds) for each in scheduling.matching_delay] == [("Merge", 10)]
    assert (scheduling.job_priorities, scheduling.enable_user_priority) == ((), True), "as in DIRAC"
    told = "\n".join(map(str, found.notes))
    for path in (
        "Registry/Groups/lhcb_prod/VOMSRole: not carried over",
        "Registry/Groups/lhcb_test/JobShare: not carried over: 'much'",
        "Operations/Defaults/JobScheduling/SiteShares: not carried over",
    ):
        assert path in told


SETUPS = """
Operations
{
  Defaults { JobScheduling { HoldTime = 10 } }
  Certification { JobScheduling { HoldTime = 20 } }
  Production { JobScheduling { HoldTime = 30 } }
  lhcb
  {
    Defaults { JobDescription { AllowedJobTypes = User, Test } }
    Production { JobDescription { AllowedJobTypes = Production } }
    Certification { JobDescription { AllowedJobTypes = Any } }
  }
}
"""


def test_options_of_the_setup_in_use_win_over_those_of_all() -> None:
    setups = "DIRAC\n{\nSetup = Production\nSetups { Production { } Certification { } }\n}\n" + SETUPS
    assert _options(setups).job_description.allowed_job_types == ("Production",)
    assert _options(setups).job_scheduling.hold_time == 30
    assert set(_tree(setups)["Operations"]) == {"Defaults", "lhcb"}
    assert "Operations/Certification: not carried over: of another setup than Production" in _notes(setups)


def test_of_several_setups_one_has_to_be_named_since_each_may_restrict_jobs() -> None:
    with pytest.raises(ConfigError, match=r"Operations/Certification: .*state DIRAC/Setup"):
        _import("DIRAC { Setups { Production { } Certification { } } }\n" + SETUPS)


def test_a_layout_without_setups_stays_as_it_is() -> None:
    text = "Operations { lhcb { JobDescription { AllowedJobTypes = Production } } }"
    assert _options(text).job_description.allowed_job_types == ("Production",)


def test_platforms_beside_computing_and_default_groups_are_carried_over() -> None:
    text = """
    Registry
    {
      DefaultGroup = cms_user, lhcb_user, lhcb_prod
      VO
      {
        lhcb
        {
        }
      }
      Groups
      {
        lhcb_user
        {
          VO = lhcb
        }
        lhcb_prod
        {
          VO = lhcb
        }
      }
    }
    Resources
    {
      OSCompatibility
      {
        x86_64-el9 = x86_64-el8
      }
    }
    """
    found = dirac_import.propose_dirac(NOTHING, {"all.cfg": text})
    assert found.notes == ()
    after = found.proposal.after
    assert after.registry.vo["lhcb"].default_group == "lhcb_user"
    assert after.tree["Resources"]["Computing"]["OSCompatibility"] == {"x86_64-el9": "x86_64-el8"}  # type: ignore[index,call-overload]


def test_an_export_leaves_out_what_is_disabled_since_dirac_would_use_it() -> None:
    queues = "{on: {}, off: {Enabled: false}, no_vo: {VO: []}}"
    ces = f"{{ce: {{Queues: {queues}}}, down: {{Enabled: false}}}}"
    sites = f"{{LCG.A.ch: {{CEs: {ces}}}, LCG.B.ch: {{Enabled: false}}}}"
    config = validate.parse(f"Resources: {{Sites: {sites}}}")
    found = dirac_text.export_dirac(config.tree)
    exported = dirac_import.propose_dirac(NOTHING, {"ours.cfg": found.text}).proposal.after
    assert list(map(str, exported.addresses)) == ["LCG.A.ch/ce/on"]
    assert "Enabled" not in found.text
    disabled = [each.partition(":")[0] for each in found.left_out if "disabled" in each]
    assert [each.removeprefix("Resources/Sites/") for each in disabled] == [
        "LCG.A.ch/CEs/ce/Queues/off",
        "LCG.A.ch/CEs/ce/Queues/no_vo",
        "LCG.A.ch/CEs/down",
        "LCG.B.ch",
    ]


def test_options_beside_the_defaults_are_not_read_as_dirac_does_not_read_them() -> None:
    text = "Operations { JobDescription { AllowedJobTypes = User\n SubmitPools = Pool_a\n } }\n"
    assert "JobDescription" not in _tree(text).get("Operations", {})
    assert "Operations/JobDescription: not carried over: DIRAC reads it below Defaults" in _notes(text)


def test_a_cpu_limit_of_no_minutes_is_no_limit() -> None:
    text = (
        "Resources { Sites { LCG { LCG.A.ch { CEs { ce1 { Queues {\n"
        "zero {\nmaxCPUTime = 0\nSI00 = 444444\n}\nnines {\nmaxCPUTime = 999999999\n}\n"
        "day {\nmaxCPUTime = 1440\nSI00 = 2160\n}\n} } } } } } }\n"
    )
    config = _import(text).proposal.after
    assert {each.queue: config.values(each, "lhcb") for each in config.addresses} == {
        "zero": {},
        "nines": {},
        "day": {"maxCPUTime": 1440, "SI00": 2160},
    }
    for name, value in (("zero/maxCPUTime", 0), ("zero/SI00", 444444), ("nines/maxCPUTime", 999999999)):
        assert f"{name}: not carried over: {value} states no number" in _notes(text)
