from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from cs_config import validate
from cs_config.editing import patch, proposals
from cs_config.editing.permissions import EditNotAllowed, Rights
from cs_config.editing.proposals import ConfigDraft, Proposal
from cs_config.errors import ConfigError
from cs_config.options import bounds
from cs_config.options.option_model import Options
from cs_config.options.options import VoOptions
from cs_config.tree import parameters
from cs_config.tree.configuration import Configuration
from cs_config.tree.parameters import KnownParameter, VoRight
from requirements.errors import InvalidRequest, NotAllowed
from requirements.values import fold

TEXT = """
Resources:
  Sites:
    LCG.A.org:
      MaxRAM: 1000          # of the site
      MaxTotalJobs: 7
      MaxWaitingJobs: 7
      NumberOfProcessors: 7
      NumberOfGPUs: 7
      GPUs: 7
      VO: [cms, dune]
      VOs: {dune: {MaxRAM: 500}}
      CEs:
        ce1:
          Enabled: false
          Queues:
            long: {CPUTime: 100, VOs: {cms: {MaxRAM: 2000}, dune: {MaxRAM: 3000}}}
            short: {CPUTime: 10}
            limited: {VOs: {cms: {MaxTotalJobs: 3}}}
    LCG.B.org: {CEs: {}}
Operations:
  Defaults: {JobScheduling: {HoldTime: 5}}
  dune: {JobScheduling: {HoldTime: 6}}
Registry:
  VO: {cms: {}, dune: {}}
"""
CONFIG = validate.parse(TEXT, "test.yaml", 3)
SITE = "Resources/Sites/LCG.A.org"
LONG = f"{SITE}/CEs/ce1/Queues/long"
CMS = Rights(vos=frozenset({"cms"}), sees=frozenset({"cms"}))
AT_A = Rights(sites=frozenset({"LCG.A.org"}))


def proposed(
    rights: Rights, values: dict[str, object], *removed: str, config: Configuration = CONFIG
) -> Proposal:
    return proposals.propose_edits(config, config, patch.read_edits(values, removed), rights)


@pytest.mark.parametrize(
    "path",
    [
        f"{LONG}/VOs/cms/MaxRAM",
        f"{LONG}/VOs/CMS/Cores",
        f"{SITE}/VOs/cms/MaxRAM",
        f"{SITE}/CEs/ce1/VOs/cms/MaxScratch",
        "Operations/cms/JobScheduling/HoldTime",
        "Operations/CMS/JobScheduling/HoldTime",
    ],
)
def test_a_vo_admin_changes_the_sections_of_his_vo(path):
    assert proposed(CMS, {path: 7}).after.version == 3


NOT_OF_CMS = [
    f"{LONG}/VOs/dune/MaxRAM",
    f"{LONG}/MaxRAM",
    f"{SITE}/MaxRAM",
    f"{SITE}/VOs/dune",
    f"{SITE}/VOs",
    f"{SITE}/cms/VOs/cms",
    SITE,
    "Resources",
    "Resources/Sites/LCG.A.org/CEs/ce1/VOs",
    "Resources/VOs/cms/x",
    "Operations",
    "Operations/Defaults/JobScheduling/HoldTime",
    "Operations/dune/JobScheduling/HoldTime",
    "Registry/VO/cms/Description",
    # Who is let in, and what the installation grants, is not for the VO to say.
    f"{LONG}/VOs/cms/VO",
    f"{LONG}/VOs/cms/vo",
    f"{LONG}/VOs/cms/Requirements",
    f"{LONG}/VOs/cms/Checks",
    f"{LONG}/VOs/cms/AuthorizationCheck",
    f"{LONG}/VOs/cms/Forwarding",
    "Operations/cms/Limits/SandboxQuota",
    "Operations/cms/limits",
    "Operations/cms/JobScheduling/InputDataCatalogue",
]


#: Values of each kind; one of them fits a parameter.
_VALUES = (1, "x", "4", True, ["cms"])


@pytest.mark.parametrize("known", parameters.KNOWN, ids=lambda known: known.name)
def test_a_vo_sets_only_parameters_that_do_not_limit_it(known: KnownParameter):
    path = f"{LONG}/VOs/cms/{known.name}"
    value = next(each for each in _VALUES if known.fits(each))
    match known.right:
        case VoRight.SET:
            assert proposed(CMS, {path: value}).differences
        case VoRight.NONE:
            with pytest.raises(EditNotAllowed):
                proposed(CMS, {path: value})
        case VoRight.LOWER:
            with pytest.raises(EditNotAllowed):
                proposed(CMS, {path: True if known.name == "Enabled" else 8})
            assert proposed(CMS, {path: False if known.name == "Enabled" else 6}).differences


@pytest.mark.parametrize(("stated", "other"), [("NumberOfGPUs: 2", "GPUs"), ("GPUs: 0", "NumberOfGPUs")])
def test_a_vo_does_not_raise_the_number_of_gpus_by_its_other_name(stated: str, other: str):
    config = validate.parse(
        f"Resources: {{Sites: {{A: {{{stated}, CEs: {{ce: {{Queues: {{q: {{}}}}}}}}}}}}}}"
    )
    for number, is_allowed in ((2, stated.endswith("2")), (3, False)):
        with nullcontext() if is_allowed else pytest.raises(EditNotAllowed):
            proposed(CMS, {f"Resources/Sites/A/VOs/cms/{other}": number}, config=config)


def test_the_number_of_pilots_access_and_the_batch_system_are_the_sites():
    kept = {each.name for each in parameters.KNOWN if each.right is not VoRight.SET}
    assert kept == {
        *("MaxTotalJobs", "MaxWaitingJobs", "Enabled", "VO", "Requirements", "Checks", "MoUTierLevel"),
        *("WholeNode", "CEType", "Endpoint", "CEQueueName", "BatchQueue", "SubmitOptions"),
        *("NumberOfProcessors", "NumberOfGPUs", "GPUs"),
    }


def test_a_vo_lowers_its_limit_of_pilots_and_never_lifts_it():
    lowered = f"{SITE}/CEs/ce1/Queues/limited/VOs/cms/MaxTotalJobs"
    assert proposed(CMS, {lowered: 2}).differences  # 3 before, of the operator
    for change in ({lowered: 4}, {lowered: None}, {lowered: "none"}):
        with pytest.raises(EditNotAllowed):
            proposed(CMS, change)
    with pytest.raises(EditNotAllowed):
        proposed(CMS, {}, lowered)
    with pytest.raises(EditNotAllowed):
        proposed(CMS, {f"{LONG}/VOs/cms": {"MaxTotalJobs": 8}})
    assert proposed(CMS, {f"{LONG}/VOs/cms/Cores": 10**6}).differences


def _with_floors(change: dict[str, object]) -> Proposal:
    text = TEXT.replace(
        "      VO: [cms, dune]\n", "      VO: [cms, dune]\n      Floors: {cms: 30%, dune: 20}\n"
    )
    return proposed(CMS, change, config=validate.parse(text, "test.yaml", 3))


@pytest.mark.parametrize("given", ["29%", "12.5%", "0%"])
def test_a_vo_gives_up_some_of_its_floor(given: str):
    assert _with_floors({f"{SITE}/Floors/cms": given}).differences


@pytest.mark.parametrize(("vo", "more"), [("cms", "31%"), ("cms", 1), ("dune", "1%"), ("dune", 5)])
def test_a_vo_takes_no_floor_from_others(vo: str, more: object):
    with pytest.raises(EditNotAllowed):
        _with_floors({f"{SITE}/Floors/{vo}": more})


def test_a_vo_gives_itself_no_floor():
    other = SITE.replace("LCG.A.org", "LCG.B.org")
    for change in (
        {f"{other}/Floors/cms": 1},
        {f"{other}/Floors": {"cms": 1}},
        {f"{SITE}/Floors": {"cms": 9}},
    ):
        with pytest.raises(EditNotAllowed):
            _with_floors(change)


#: Options of its own jobs, which a VO sets to any allowed value.
OPTIONS_OF_VO = {
    "JobTypes",
    *(f"JobDescription/{name}" for name in ("Extra", "AllowedJobTypes", "MaxInputData", "MaxParametricJobs")),
    *("JobDescription/Specification", "JobDescription/KnownTags"),
    *("JobDescription/Clamp", "JobDescription/Declared", "JobPath/Chain"),
    *("JobScheduling/taskQueueCPUTimeIntervals", "JobScheduling/NarrowSites"),
    *("JobScheduling/RejectUnmatchable", "JobScheduling/AllowInvalidSites", "JobScheduling/MaxRescheduling"),
    *("JobScheduling/RescheduleDelays", "JobScheduling/EnableSharesCorrection", "JobScheduling/WaitingTTL"),
    *("JobScheduling/ShareCorrections", "JobScheduling/RunningLimit", "JobScheduling/MatchingDelay"),
    *("JobScheduling/UnseenHardwareDays", "JobScheduling/EnableUserPriority", "JobScheduling/JobPriorities"),
    "JobScheduling/Scarcity",
    *("Pools/ByAddress", "Leases/StalledGrace", "Leases/RunOnTime", "DiracDoor/Moved"),
}
#: Options by which work is done again and again, which a VO sets to no less than the default.
AGAIN = {
    "Pools/RefreshInterval": VoOptions().pools.refresh_interval,
    "Leases/Time": VoOptions().leases.time,
    "Leases/StalledTime": VoOptions().leases.stalled_time,
    "Leases/HeartbeatTime": VoOptions().leases.heartbeat_time,
    "Leases/LongestHeartbeatTime": VoOptions().leases.longest_heartbeat_time,
    "JobScheduling/HoldTime": 5,  # in `TEXT`
}
#: Options of what the installation keeps, which a VO only lowers, with the default.
KEPT = {
    "Retention/Jobs": 30,
    "Retention/Outputs": 14,
    "Retention/Sandboxes": 14,
    "Retention/Logs": 90,
    "Pools/GraceTime": VoOptions().pools.grace_time,
}


def list_options(section: type[Options], above: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        path, kind = f"{above}{field.alias or name}", field.annotation
        if isinstance(kind, type) and issubclass(kind, Options):
            yield from list_options(kind, f"{path}/")
        else:
            yield path


def test_each_option_is_the_vos_only_lowered_by_it_or_the_installations():
    """A new option appears here: decide whether it bounds what a VO may use."""
    others = {
        path
        for path in list_options(VoOptions)
        if not path.startswith("Limits/")
        and path not in ("JobScheduling/InputDataCatalogue", "Retention/DayRecords")
    }
    assert others == OPTIONS_OF_VO | KEPT.keys() | AGAIN.keys()
    for path in set(list_options(VoOptions)) - others:
        assert not CMS.may_change(("Operations", "cms", *path.split("/"))), path


@pytest.mark.parametrize(("path", "default"), KEPT.items())
def test_a_vo_shortens_how_long_the_installation_keeps_data_and_never_lengthens_it(path: str, default: float):
    option = f"Operations/cms/{path}"
    section, name = path.split("/")
    for change in ({option: default + 1}, {f"Operations/CMS/{section}": {name: default * 2}}, {option: True}):
        with pytest.raises((EditNotAllowed, ConfigError)):
            proposed(CMS, change)
    shorter = proposed(CMS, {option: default / 2})
    assert shorter.differences

    assert proposed(CMS, {option: default / 4}, config=shorter.after).differences
    for values, removed in (({option: default}, ()), ({}, (option,)), ({}, (f"Operations/cms/{section}",))):
        with pytest.raises(EditNotAllowed):
            proposed(CMS, values, *removed, config=shorter.after)


@pytest.mark.parametrize(("path", "default"), AGAIN.items())
def test_a_vo_has_work_done_again_no_more_often_than_by_default(path: str, default: float):
    """Agents and optimizers work for all VOs in turn."""
    option, (section, name) = f"Operations/cms/{path}", path.split("/")
    for change in ({option: default - 1}, {f"Operations/CMS/{section}": {name: 1}}, {option: True}):
        with pytest.raises((EditNotAllowed, ConfigError)):
            proposed(CMS, change)
    longer = proposed(CMS, {option: default + 1})
    for values, removed in (({option: default}, ()), ({}, (option,)), ({}, (f"Operations/cms/{section}",))):
        assert proposed(CMS, values, *removed, config=longer.after).differences
    with pytest.raises(EditNotAllowed) as caught:
        proposed(CMS, {option: 1}, config=longer.after)
    where = f"Operations/Defaults/{path}" if "HoldTime" in path else "built-in default"
    reason = f"1: a VO sets no less than {default:g} ({where})"
    assert str(caught.value) == f"{option}: {reason}; an operator may set it"
    assert [each.message for each in proposals.list_problems(caught.value, (), None)] == [reason]


@pytest.mark.parametrize(
    ("values", "removed", "message"),
    [
        (
            {f"{SITE}/CEs/ce1/Queues/limited/VOs/cms/MaxTotalJobs": 4},
            (),
            f"4: a VO sets no more than 3 ({SITE}/CEs/ce1/Queues/limited/VOs/cms/MaxTotalJobs)",
        ),
        ({f"{LONG}/VOs/cms/MaxTotalJobs": 8}, (), f"8: a VO sets no more than 7 ({SITE}/MaxTotalJobs)"),
        (
            {},
            (f"{SITE}/CEs/ce1/Queues/limited/VOs/cms/MaxTotalJobs",),
            "without a value it would be more: a VO sets no more than 3",
        ),
        ({f"{LONG}/VOs/cms/GPUs": 0}, (), "0 would be no limit: a VO may only lower it"),
        ({"Operations/cms/Retention/Jobs": 31}, (), "31: a VO sets no more than 30 (built-in default)"),
        (
            {"Operations/CMS/JobScheduling": {"HoldTime": 4}},
            (),
            "4: a VO sets no less than 5 (Operations/Defaults/JobScheduling/HoldTime)",
        ),
    ],
)
def test_a_value_beyond_a_bound_is_refused_with_the_bound_and_where_it_is_set(
    values: dict[str, object], removed: tuple[str, ...], message: str
):
    with pytest.raises(EditNotAllowed) as caught:
        proposed(CMS, values, *removed)
    assert f": {message}" in str(caught.value)
    assert str(caught.value).endswith("; an operator may set it")


def test_a_rollback_names_each_value_that_is_beyond_a_bound_now():
    older = validate.parse(
        TEXT.replace(
            "Operations:\n", "Operations:\n  cms: {Leases: {Time: 60}, Retention: {Jobs: 365, Logs: 9}}\n"
        ),
        "test.yaml",
        2,
    )
    with pytest.raises(EditNotAllowed) as caught:
        proposals.propose_rollback(CONFIG, older, CMS)
    least = f"{VoOptions().leases.time:g}"
    assert str(caught.value) == (
        f"Operations/cms/Leases/Time: 60: a VO sets no less than {least} (built-in default); "
        "Operations/cms/Retention/Jobs: 365: a VO sets no more than 30 (built-in default); "
        "nothing was restored: an operator may restore these, and you the other values of version 2 by "
        "`pilotage config set` (`config diff --from 2` lists them)"
    )
    assert caught.value.details == {"paths": ["Operations/cms/Leases/Time", "Operations/cms/Retention/Jobs"]}


def test_a_floor_is_what_the_operator_has_set():
    text = TEXT.replace("  Defaults: {", "  Defaults: {Leases: {Time: 60}, ", 1)
    text = text.replace("Operations:\n", "Operations:\n  cms: {Pools: {RefreshInterval: 5}}\n")
    config = validate.parse(text, "test.yaml", 3)
    for path, value in (("Leases/Time", 60), ("Pools/RefreshInterval", 6)):
        assert proposed(CMS, {f"Operations/cms/{path}": value}, config=config).differences
    for path, value in (("Leases/Time", 59), ("Pools/RefreshInterval", 4)):
        with pytest.raises(EditNotAllowed):
            proposed(CMS, {f"Operations/cms/{path}": value}, config=config)


def test_a_vo_that_keeps_data_longer_than_others_may_give_that_up():
    text = TEXT.replace("Operations:\n", "Operations:\n  cms: {Retention: {Jobs: 365}}\n")
    config = validate.parse(text, "test.yaml", 3)
    option = "Operations/cms/Retention/Jobs"
    assert proposed(CMS, {option: 364}, config=config).differences
    assert proposed(CMS, {}, option, config=config).differences


@pytest.mark.parametrize("path", NOT_OF_CMS)
def test_a_vo_admin_changes_nothing_else_and_is_told_the_path(path):
    for asked in ({"values": {path: "x"}, "removed": ()}, {"values": {}, "removed": (path,)}):
        with pytest.raises(EditNotAllowed, match="Operations/cms and VOs/cms") as caught:
            proposed(CMS, asked["values"], *asked["removed"])
        assert tuple(caught.value.reasons) == (path,)


def test_what_is_refused_inside_a_section_of_ones_own_is_refused_with_the_section():
    with pytest.raises(EditNotAllowed) as caught:
        proposed(
            CMS, {f"{LONG}/VOs/cms": {"MaxRAM": 1, "VO": ["cms"]}, "Operations/cms": {"Limits": {"X": 1}}}
        )
    assert tuple(caught.value.reasons) == (f"{LONG}/VOs/cms/VO", "Operations/cms/Limits/X")


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("Operations/cms/Limits/WebHooks", 20, "set by operators only; allowed is"),
        (f"{LONG}/VOs/cms/Enabled", True, "true: a VO may set only false, to use a queue no more"),
        (f"{LONG}/VOs/cms/VO", ["cms"], "set by the admins of the site only; allowed is"),
        ("Resources/Sites/LCG.Nowhere.org/VOs/cms/MaxRAM", 1, "there is no such site, CE or queue; allowed"),
        ("Operations/dune/Limits/WebHooks", 20, "not yours to change; allowed is"),
        (f"{LONG}/MaxRAM", 1, "not yours to change; allowed is"),
    ],
)
def test_a_refused_path_has_the_reason_that_holds_for_it(path: str, value: object, reason: str):
    with pytest.raises(EditNotAllowed) as caught:
        proposed(CMS, {path: value})
    assert str(caught.value).startswith(f"{path}: {reason}")


def test_a_vo_switches_a_queue_off_for_itself_but_not_on():
    assert proposed(CMS, {f"{SITE}/CEs/ce1/VOs/cms/Enabled": False}).differences
    for value in (True, "yes", None):
        with pytest.raises(EditNotAllowed):
            proposed(CMS, {f"{SITE}/CEs/ce1/VOs/cms/Enabled": value})
        with pytest.raises(EditNotAllowed):
            proposed(CMS, {f"{SITE}/CEs/ce1/VOs/cms": {"Enabled": value}})


def test_a_vo_makes_no_site_ce_or_queue_by_saying_something_of_it():
    path = "Resources/Sites/LCG.B.org/CEs/new/VOs/cms/MaxRAM"
    with pytest.raises(EditNotAllowed) as caught:
        proposed(CMS, {path: 1})
    assert tuple(caught.value.reasons) == (path,)


@pytest.mark.parametrize(
    "path", [f"{SITE}/MaxRAM", f"{LONG}/Enabled", f"{SITE}/VO", f"{SITE}/CEs/ce1/Throttle/Policy"]
)
def test_a_site_admin_changes_his_site(path):
    value = {"Enabled": False, "VO": ["cms"], "Policy": "level0"}.get(path.rpartition("/")[2], 5)
    assert proposed(AT_A, {path: value}).differences


def test_a_site_admin_adds_and_removes_a_queue():
    assert proposed(AT_A, {f"{SITE}/CEs/ce2": {"Queues": {"q": {"MaxRAM": 5}}}}).differences
    assert proposed(AT_A, {}, f"{SITE}/CEs/ce1/Queues/short").differences


NOT_OF_A = [
    f"{LONG}/VOs/cms/MaxRAM",
    f"{SITE}/VOs/dune",
    "Resources/Sites/LCG.B.org/MaxRAM",
    "Operations/cms",
]


@pytest.mark.parametrize("path", [*NOT_OF_A, "Resources/Sites", "Registry/VO/cms", f"{SITE}/vos/cms/x"])
def test_a_site_admin_changes_no_other_site_and_no_values_of_vos(path):
    with pytest.raises(EditNotAllowed) as caught:
        proposed(AT_A, {path: "x"})
    assert tuple(caught.value.reasons) == (path,)


def test_a_site_admin_does_not_remove_or_replace_a_queue_that_has_values_of_vos():
    for asked in (((), (LONG,)), (((LONG, {"CPUTime": 5}),), ()), (((SITE, None),), ())):
        with pytest.raises(EditNotAllowed) as caught:
            proposed(AT_A, dict(asked[0]), *asked[1])
        assert f"{LONG}/VOs/dune/MaxRAM" in tuple(caught.value.reasons)


def test_an_operator_changes_all_and_comments_stay():
    after = proposed(Rights(everything=True), {f"{SITE}/MaxRAM": 1500, "Registry/VO/icecube": {}}).after
    assert "MaxRAM: 1500          # of the site" in after.source
    assert "icecube" in after.vos


def test_who_edits_nothing_is_refused_everything():
    for path in (LONG, "Operations/cms", "Registry"):
        with pytest.raises(EditNotAllowed, match="allowed is nothing"):
            proposed(Rights(sees=frozenset({"cms"})), {path: 1})


def test_going_back_a_vo_admin_takes_back_his_own_only():
    later = validate.parse(
        TEXT.replace("cms: {MaxRAM: 2000}", "cms: {MaxRAM: 9000, Cores: 3}").replace("500", "501"), "x", 4
    )
    after = proposals.propose_rollback(later, CONFIG, CMS).after.tree
    queues = after["Resources"]["Sites"]["LCG.A.org"]["CEs"]["ce1"]["Queues"]
    assert queues["long"]["VOs"]["cms"] == {"MaxRAM": 2000}
    assert after["Resources"]["Sites"]["LCG.A.org"]["VOs"]["dune"] == {"MaxRAM": 501}


GROUPED = validate.parse(
    TEXT.replace(
        "  VO: {cms: {}, dune: {}}",
        """  VO: {cms: {}, dune: {}}
  Groups:
    cms_user: {VO: cms, Users: [ann], JobShare: 600, Properties: [NormalUser]}
    production: {VO: cms, JobShare: 400}
    dune_user: {VO: dune}
    shared: {Users: [eve]}
""",
    ),
    "test.yaml",
    3,
)


def of_groups(values: dict[str, object], *removed: str, limit: str = "") -> Proposal:
    config = limited(limit) if limit else GROUPED
    groups = {fold(name): group.vo for name, group in config.registry.groups.items()}
    rights = Rights(vos=frozenset({"cms"}), sees=frozenset({"cms"}), groups=groups)
    return proposed(
        rights,
        {f"Registry/Groups/{path}": each for path, each in values.items()},
        *removed,
        config=config,
    )


def limited(shares: str) -> Configuration:
    own = f"  cms: {{Limits: {{JobShares: {shares}}}}}\n  dune: {{JobS"
    return validate.parse(GROUPED.source.replace("  dune: {JobS", own, 1), "test.yaml", 3)


def test_a_vo_admin_changes_members_and_shares_of_the_own_groups_within_their_sum() -> None:
    after = of_groups(
        {
            "cms_user/Users": ["ann", "bob"],
            "cms_user/JobShare": 500,
            "production/AllowBackgroundTQs": True,
            "cms_top": {"VO": "CMS", "JobShare": 100, "Users": ["bob"]},
        }
    ).after
    assert after.registry.groups["cms_user"].users == ("ann", "bob")
    assert after.registry.groups["cms_top"].job_share == 100
    gone = of_groups({}, "Registry/Groups/production").after
    assert "production" not in gone.registry.groups


def test_shares_grow_only_up_to_what_an_operator_sets() -> None:
    with pytest.raises(NotAllowed, match=r"would be 1001 together, allowed are 1000 .*cms/Limits/JobShares"):
        of_groups({"production/JobShare": 401})
    with pytest.raises(NotAllowed, match="would be 2000 together"):  # the default of a new group
        of_groups({"cms_top": {"VO": "cms"}})
    assert (
        of_groups({"production/JobShare": 900}, limit="1500").after.registry.groups["production"].job_share
        == 900
    )
    with pytest.raises(NotAllowed, match="allowed are 1500"):
        of_groups({"production/JobShare": 901}, limit="1500")


def test_the_group_of_all_who_name_none_is_not_removed_for_a_larger_default_share() -> None:
    source = GROUPED.source.replace("JobShare: 600, Properties: [NormalUser]", "JobShare: 6")
    config = validate.parse(source, "test.yaml", 3)
    rights = Rights(vos=frozenset({"cms"}), groups={"cms_user": "cms", "production": "cms"})
    with pytest.raises(NotAllowed, match="would be 1400 together, allowed are 406"):
        proposed(rights, {}, "Registry/Groups/cms_user", config=config)


@pytest.mark.parametrize(
    "values",
    [
        {"dune_user/JobShare": 1},
        {"shared/Users": ["ann"]},
        {"cms_user/Properties": ["JobAdministrator"]},
        {"cms_user/VO": "dune"},
        {"cms_top": {"VO": "dune", "JobShare": 1}},
        {"cms_top": {"JobShare": 0}},
        {"cms_top": {"VO": "cms", "JobShare": 0, "Properties": ["GenericPilot"]}},
        {"dune_top": {"VO": "cms", "JobShare": 0}},
        {"cms_b_user": {"VO": "cms", "JobShare": 0}},
        {"top": {"VO": "cms", "JobShare": 0}},
    ],
    ids=str,
)
def test_groups_of_others_and_what_the_installation_grants_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(EditNotAllowed, match="not yours to change"):
        of_groups(values)


def test_a_user_of_the_default_group_of_another_vo_is_not_put_into_the_own_one() -> None:
    source = GROUPED.source.replace(
        "VO: {cms: {}, dune: {}}", "VO: {cms: {DefaultGroup: cms_user}, dune: {DefaultGroup: dune_user}}"
    ).replace("dune_user: {VO: dune}", "dune_user: {VO: dune, Users: [dan, both]}")
    config = validate.parse(source.replace("Users: [ann]", "Users: [ann, both]"), "test.yaml", 3)
    admin = Rights(
        vos=frozenset({"cms"}), groups={"cms_user": "cms", "production": "cms", "dune_user": "dune"}
    )

    def put(group: str, *users: str, rights: Rights = admin) -> Proposal:
        return proposed(rights, {f"Registry/Groups/{group}/Users": [*users]}, config=config)

    with pytest.raises(EditNotAllowed, match="cms_user/Users: dan: in the default group of another VO"):
        put("cms_user", "ann", "dan", "bob", "both")
    assert put("cms_user", "ann", "bob", "both").differences, "who was there stays"
    assert put("production", "dan").differences, "it is no default group"
    assert put("cms_user", "dan", rights=Rights(everything=True)).differences


def test_a_whole_section_of_groups_is_not_removed_with_those_of_others() -> None:
    with pytest.raises(EditNotAllowed):
        of_groups({}, "Registry/Groups")
    with pytest.raises(EditNotAllowed):
        of_groups({}, "Registry/Groups/cms_user")  # its Properties are the operator's


@pytest.mark.parametrize(
    "draft",
    [
        ConfigDraft(edits=patch.read_edits({f"{LONG}/VOs/cms/P{n}": n for n in range(3001)})),
        ConfigDraft(edits=patch.read_edits({f"{LONG}/VOs/cms": {f"P{n}": n for n in range(3001)}})),
        ConfigDraft(edits=patch.read_edits({f"{LONG}/VOs/cms/P": list(range(3001))})),
        ConfigDraft(edits=patch.read_edits({f"{LONG}/VOs/cms/P": [list(range(3001))]})),
        ConfigDraft(edits=patch.read_edits({}, [f"{LONG}/VOs/cms/P{n}" for n in range(3001)])),
        ConfigDraft(edits=patch.read_edits({f"{LONG}/VOs/cms/P": ["x" * 1000] * 251})),
        ConfigDraft(edits=patch.read_edits({f"{LONG}/VOs/cms": {"P" * 250_001: 1}})),
        ConfigDraft(names=(*LONG.split("/"), "VOs", "cms"), text="MaxRAM: 1 # long\n" * 20_000),
    ],
    ids=["paths", "section", "list", "nested", "removals", "characters", "name", "text"],
)
def test_a_change_of_an_administrator_takes_little_time_at_most(draft: ConfigDraft) -> None:
    with pytest.raises(InvalidRequest, match="allowed are") as caught:
        proposals.list_edits(draft, CONFIG, CMS)
    assert not any(problem.line for problem in proposals.list_problems(caught.value, draft.names, draft.text))


def test_an_operator_changes_as_much_as_there_is() -> None:
    draft = ConfigDraft(edits=patch.read_edits({f"{LONG}/VOs/cms/P{n}": n for n in range(3001)}))
    assert proposals.list_edits(draft, CONFIG, Rights(everything=True)) == draft.edits


@pytest.mark.parametrize(
    ("rights", "place"),
    [(CMS, f"{LONG}/VOs/cms"), (AT_A, f"{LONG}"), (AT_A, SITE)],
    ids=["VO", "queue", "site"],
)
def test_the_parts_of_an_administrator_grow_up_to_a_bound(
    rights: Rights, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "OWN_VALUES", 100)
    assert proposed(rights, {f"{place}/P{n}": n for n in range(80)}).differences
    with pytest.raises(NotAllowed, match="allowed are 100"):
        proposed(rights, {f"{place}/P{n}": n for n in range(101)})
    with pytest.raises(NotAllowed, match="allowed are 100"):
        proposed(rights, {f"{place}/P": list(range(101))})
    monkeypatch.setattr(bounds, "OWN_VALUES", 0)
    removed = f"{LONG}/VOs/cms/MaxRAM" if rights is CMS else f"{SITE}/MaxRAM"
    assert proposed(rights, {}, removed).differences, "what is there already may be made less"


@pytest.mark.parametrize(("rights", "place"), [(CMS, f"{SITE}/VOs/cms"), (AT_A, SITE)], ids=["VO", "site"])
def test_values_count_for_each_queue_that_inherits_them(
    rights: Rights, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has them in memory: thousands at a site of thousands of queues stopped the service."""
    monkeypatch.setattr(bounds, "INHERITED_VALUES", 60)
    assert proposed(rights, {f"{place}/P{n}": n for n in range(10)}).differences
    with pytest.raises(NotAllowed, match="values that queues inherit, each counted for each queue"):
        proposed(rights, {f"{place}/P{n}": n for n in range(21)})
    monkeypatch.setattr(bounds, "INHERITED_VALUES", 0)
    below = f"{LONG}/VOs/cms" if rights is CMS else LONG
    assert proposed(rights, {f"{below}/P{n}": n for n in range(9)}).differences, "nothing inherits these"


def test_a_site_that_adds_queues_does_not_multiply_the_values_of_vos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "INHERITED_VALUES", 60)
    queues = {f"{SITE}/CEs/ce1/Queues/q{n}/CPUTime": 1 for n in range(60)}
    with pytest.raises(NotAllowed, match=r"the site LCG.A.org would have \d+ values that queues inherit"):
        proposed(AT_A, queues)


def test_each_site_and_vo_of_an_administrator_has_its_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "OWN_VALUES", 30)
    both = Rights(sites=frozenset({"LCG.A.org", "LCG.B.org"}))
    other = "Resources/Sites/LCG.B.org"
    assert proposed(both, {f"{place}/P{n}": n for n in range(15) for place in (SITE, other)}).differences
    with pytest.raises(NotAllowed, match=r"the site LCG.B.org would have 32 values"):
        proposed(both, {f"{other}/P{n}": n for n in range(31)})


def test_what_was_there_is_restored_although_it_is_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    larger = proposed(CMS, {f"{LONG}/VOs/cms/P{n}": n for n in range(9)}).after
    monkeypatch.setattr(bounds, "OWN_VALUES", 5)
    assert proposals.propose_rollback(CONFIG, larger, CMS).differences
    edit = patch.read_edits({f"{LONG}/VOs/cms/P{n}": n for n in range(9)})
    assert proposals.propose_edits(CONFIG, CONFIG, edit, CMS, restoring=True).differences
    with pytest.raises(NotAllowed, match="allowed are 5"):
        proposals.propose_edits(CONFIG, CONFIG, edit, CMS)
