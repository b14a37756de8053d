import pytest

from cs_config import validate
from cs_config.options import bounds, keywords
from cs_config.options.operations import options_for
from cs_config.options.options import Measure, TimeSlice
from requirements.record import MatchRule, ValueKind


def errors(operations: str) -> list[str]:
    return [str(problem) for problem in validate.report(f"Operations: {operations}\n", "o.yaml").errors]


def test_without_anything_said_the_defaults_hold() -> None:
    found = options_for(validate.parse("Operations: {}"), "cms")
    assert found.job_scheduling.max_rescheduling == 3
    assert found.job_scheduling.reschedule_delays == (60, 180, 300, 600)
    assert found.job_scheduling.cpu_segments[-1] == 1_080_000
    assert found.job_description.defaults["CPUTime"] == 86_400
    priority = keywords.BY_NAME["Priority"]
    assert [*found.job_description.out_of_bounds(priority, 11)] == ["11 is too large, allowed is at most 10"]
    assert found.pools.refresh_interval == 900
    assert found.leases.time == 300


def test_a_vos_options_stand_over_those_for_everybody_one_by_one() -> None:
    config = validate.parse(
        "Operations: {Defaults: {JobScheduling: {MaxRescheduling: 5, HoldTime: 10}},"
        " CMS: {JobScheduling: {HoldTime: 20}}}"
    )
    assert options_for(config, "cms").job_scheduling.hold_time == 20
    assert options_for(config, "cms").job_scheduling.max_rescheduling == 5
    assert options_for(config, "atlas").job_scheduling.hold_time == 10
    assert options_for(config, None).job_scheduling.hold_time == 10
    assert "cms" in config.vos


@pytest.mark.parametrize(
    "rule",
    ["137 or memory limit: Memory x 1.5", "65: Disk x 2, another site", "1: cputime x 2", "1: Own = a"],
)
def test_a_default_rule_of_retry_may_change_what_jobs_of_the_vo_have(rule: str) -> None:
    stated = f"{{Extra: [own], Disk: {{type: number}}, Retry: {{default: '{rule}'}}}}"
    assert errors(f"{{cms: {{JobDescription: {stated}}}}}") == []


def test_all_defaults_together_are_bounded_since_each_job_gets_them() -> None:
    half = "x" * (bounds.DEFAULT_VALUES // 2)
    stated = f"Executable: {{default: {half}}}, Arguments: {{default: %s}}"
    assert errors(f"{{CMS: {{JobDescription: {{{stated % 'x'}}}}}}}") == []
    [refused] = errors(f"{{CMS: {{JobDescription: {{{stated % half}}}}}}}")
    assert "Operations/CMS/JobDescription/Arguments/default: all defaults have 16,388 characters" in refused
    assert "with it, allowed are 16,384" in refused


def test_null_goes_back_to_the_built_in_default() -> None:
    config = validate.parse(
        "Operations: {Defaults: {Pools: {GraceTime: 5}}, cms: {Pools: {GraceTime: null}}}"
    )
    assert options_for(config, "cms").pools.grace_time == 3_600


def test_a_vo_may_have_options_without_defaults() -> None:
    config = validate.parse("Operations: {cms: {Pools: {GraceTime: 5}}}")
    assert options_for(config, "cms").pools.grace_time == 5
    assert options_for(config, "atlas").pools.grace_time == 3_600


def test_names_are_declared() -> None:
    config = validate.parse(
        "Operations: {Defaults: {JobDescription: {"
        "Memory: {type: number, unit: MB, resource: MaxRAM, min: 1}, Software: {type: list, match: all}}}}"
    )
    declarations = options_for(config, "cms").job_description.declarations
    memory, software = declarations.get("memory"), declarations.get("SOFTWARE")
    assert memory is not None
    assert (memory.kind, memory.unit, memory.resource, memory.minimum) == (
        ValueKind.NUMBER,
        "MB",
        "MaxRAM",
        1,
    )
    assert software is not None
    assert (software.kind, software.match) == (ValueKind.LIST, MatchRule.ALL)


def test_a_vo_redeclares_a_name_in_another_case() -> None:
    config = validate.parse(
        "Operations: {Defaults: {JobDescription: {Memory: {type: number, min: 1}}},"
        " cms: {JobDescription: {memory: {max: 5}}}}"
    )
    declarations = options_for(config, "cms").job_description.declarations
    assert declarations.names() == ("memory",)
    found = declarations.get("Memory")
    assert found is not None
    assert (found.minimum, found.maximum) == (1, 5)


def test_bounds_of_keywords_keep_what_is_not_said() -> None:
    config = validate.parse("Operations: {Defaults: {JobDescription: {CPUTime: {default: 3600}}}}")
    found = options_for(config, None).job_description
    cpu_time = keywords.BY_NAME["CPUTime"]
    assert found.defaults["CPUTime"] == 3_600
    assert [len([*found.out_of_bounds(cpu_time, each)]) for each in (99, 100, 500_000, 500_001)] == [
        1,
        0,
        0,
        1,
    ]


def test_shares_are_corrected_only_where_it_is_asked_for() -> None:
    config = validate.parse(
        "Operations: {Defaults: {JobScheduling: {ShareCorrections: {all: {MaxGlobalCorrection: 2}}}},"
        " cms: {JobScheduling: {EnableSharesCorrection: true, ShareCorrections: {users: {Group: cms_user,"
        " Measure: Jobs, TimeSlices: {day: {TimeSpan: 86400}, week: {Weight: 2}}}}}},"
        " atlas: {JobScheduling: {EnableSharesCorrection: true, ShareCorrections: {all: null}}}}"
    )
    assert options_for(config, None).job_scheduling.corrections == ()
    users, groups = sorted(
        options_for(config, "cms").job_scheduling.corrections, key=lambda each: not each.group
    )
    assert (groups.group, groups.max_global_correction, users.measure) == (None, 2, Measure.JOBS)
    assert len(options_for(config, "atlas").job_scheduling.corrections) == 1
    assert [(each.time_span, each.weight, each.max_correction) for each in users.slices] == [
        (86_400, 1, 3),
        (604_800, 2, 3),
    ]


@pytest.mark.parametrize(
    ("stated", "days"),
    [
        ({}, 7),
        ({"HalfLife": 86_400}, 10),
        ({"HalfLife": 86_400 * 7}, 31),
        ({"HalfLife": 86_400, "TimeSpan": 172_800}, 2),
    ],
)
def test_a_slice_with_a_half_life_is_ten_times_as_long_or_as_stated(
    stated: dict[str, float], days: int
) -> None:
    assert TimeSlice.model_validate(stated).span == days * 86_400


def test_a_correction_of_which_nothing_is_said_is_one_between_groups_over_a_week() -> None:
    config = validate.parse("Operations: {cms: {JobScheduling: {EnableSharesCorrection: true}}}")
    [correction] = options_for(config, "cms").job_scheduling.corrections
    assert (correction.group, correction.measure, correction.max_global_correction) == (
        *(None, Measure.WALL_TIME, 5),
    )
    [week] = correction.slices
    assert (week.time_span, week.weight, week.max_correction) == (604_800, 1, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "{Defaults: {JobScheduling: {MaxReschedulin: 3}}}",
            "JobScheduling/MaxReschedulin: unknown option, did you mean MaxRescheduling? (o.yaml:1)",
        ),
        (
            "{Defaults: {JobSheduling: {}}}",
            "Operations/Defaults/JobSheduling: unknown option, did you mean JobScheduling?",
        ),
        ("{Default: {}}", "Operations/Default: unknown level, did you mean Defaults?"),
        ("{defaults: {}}", "Operations/defaults: unknown level, did you mean Defaults?"),
        ("{Pools: 5}", "Operations/Pools: options stand in a section Defaults or in one named after a VO"),
        ("{c s: {}}", "Operations/c s: 'c s' is not a valid name of a VO"),
        ("{cms: {Pools: {GraceTime: -1}}}", "Operations/cms/Pools/GraceTime: -1 is not allowed here"),
        ("{cms: {Pools: 5}}", "Operations/cms/Pools: 5 is not allowed here"),
        (
            "{cms: {JobScheduling: {NarrowSites: yes}}}",
            "Operations/cms/JobScheduling/NarrowSites: 'yes' is not allowed here, allowed is true or false",
        ),
        ("{cms: {JobScheduling: {MaxRescheduling: '3'}}}", "allowed is a whole number"),
        ("{cms: {JobScheduling: {RescheduleDelays: true}}}", "allowed is a list"),
        ("{cms: {JobScheduling: {taskQueueCPUTimeIntervals: [2, 1]}}}", "strictly increasing"),
        (
            "{cms: {JobScheduling: {ShareCorrections: {all: {TimeSlices: {day: {TimeSpam: 86400}}}}}}}",
            "ShareCorrections/all/TimeSlices/day/TimeSpam: unknown option, did you mean TimeSpan?",
        ),
        (
            "{cms: {JobScheduling: {ShareCorrections: {all: {MaxGlobalCorrection: 0.5}}}}}",
            "ShareCorrections/all/MaxGlobalCorrection: 0.5 is not allowed here",
        ),
        (
            "{cms: {JobScheduling: {ShareCorrections: {all: {Measure: Walltime}}}}}",
            "ShareCorrections/all/Measure: 'Walltime' is not allowed here, allowed is 'WallTime' or 'Jobs'",
        ),
        ("{cms: {JobDescription: {Memory: number}}}", "to declare a name, make it a section"),
        (
            "{cms: {JobDescription: {Memory: {typ: number}}}}",
            "Operations/cms/JobDescription/Memory/typ: unknown option, did you mean type?",
        ),
        (
            "{cms: {JobDescription: {Memory: {type: numer}}}}",
            "cms/JobDescription/Memory/type: 'numer' is not allowed here, allowed is 'number', 'string'",
        ),
        ("{cms: {JobDescription: {Memory: {min: 5, max: 1}}}}", "min 5 is more than max 1"),
        ("{cms: {JobDescription: {Model: {type: string, min: 5}}}}", "min and max are for numbers"),
        (
            "{cms: {Leases: {StalledTime: 20000}}}",
            "RunOnTime, 21600 s, is less than StalledTime and StalledGrace together, 21800 s",
        ),
    ],
)
def test_wrong_options_are_errors_with_path_and_suggestion(text: str, said: str) -> None:
    found = errors(text)
    assert len(found) == 1
    assert said in found[0]


def test_what_a_vo_only_inherits_is_reported_once() -> None:
    assert (
        len(errors("{Defaults: {Pools: {GraceTime: -1}}, cms: {}, atlas: {Limits: {SandboxBytes: 5}}}")) == 1
    )


def test_the_line_of_a_wrong_option_is_the_one_of_its_name() -> None:
    text = "Operations:\n  Defaults:\n    Pools:\n      RefreshInterval: 5\n      GraceTime: x\n"
    assert [problem.line for problem in validate.report(text, "o.yaml").errors] == [5]


def test_a_vo_with_options_that_resembles_a_named_one_is_a_warning() -> None:
    report = validate.report("Resources: {Sites: {A: {VO: [icecube]}}}\nOperations: {icecub: {}}\n", "o.yaml")
    assert [str(problem) for problem in report.warnings] == [
        "Operations/icecub: no resource and no group names this VO, did you mean icecube? (o.yaml:2)"
    ]


@pytest.mark.parametrize(
    ("declared", "attribute"),
    [("Tags: {default: [ta, tb]}", "tags"), ("Platform: {default: [ta, tb]}", "platforms")],
)
def test_the_default_of_a_keyword_with_several_values_may_be_a_list(declared: str, attribute: str) -> None:
    config = validate.parse(f"Operations: {{cms: {{JobDescription: {{{declared}}}}}}}")
    assert options_for(config, "cms").job_description.default_values[attribute] == ("ta", "tb")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("JobType: {default: [a, b]}", 'JobType/default: ["a", "b"], allowed is a text'),
        ("Tags: {default: [true, a]}", "Tags/default: true, allowed is a text"),
        ("Tags: {default: {a: b}}", "Tags/default: a section is not allowed here"),
        ("GPUs: {default: many}", 'GPUs/default: "many", allowed is a whole number'),
        ("CPUTime: {default: 1000.5}", "CPUTime/default: 1000.5, allowed is a whole number"),
        ("Tags: {default: 'a b'}", "Tags/default: 'a b' is not a valid name"),
        (
            "CPULevel: {default: x86-64-v3}, CPUFeatures: {default: [aes]}",
            "CPUFeatures/default: beside the default of CPULevel, x86-64-v3: a job has one of the two",
        ),
        (
            "Retry: {default: '137: Memry x 1.5'}",
            "Retry/default: '137: Memry x 1.5': Memry is no keyword, and is not declared, did",
        ),
        (
            "Retry: {default: '65: Disk x 2'}",
            "Retry/default: '65: Disk x 2': Disk is no keyword, and is not declared, declare",
        ),
        (
            "Retry: {default: '65: Owner = me'}",
            "Retry/default: '65: Owner = me': Owner is not changed: a job keeps its owner",
        ),
        (
            "Retry: {default: '65: After = 1'}",
            "Retry/default: '65: After = 1': After is not changed: a job waits for those that",
        ),
        (
            "Retry: {default: '65: Priority = 99'}",
            "Retry/default: '65: Priority = 99': Priority: 99 is too large, allowed",
        ),
        (
            "Relax: {default: 'after 2 h: without Platfrom'}",
            "Relax/default: 'after 2 h: without Platfrom': Platfrom is no keyword",
        ),
        ("WholeNode: {default: perhaps}", 'WholeNode/default: "perhaps", allowed is true'),
        ("Priority: {default: 99}", "Priority/default: 99 is too large, allowed is at most 10"),
        ("InputData: {default: /lhcb/x}", "InputData/default: has no default, each job states its own"),
        ("MinRAM: {default: 10, min: 20}", "MinRAM/default: 10 is too small, allowed is at least 20"),
        ("CPUTime: {max: 3600}", "CPUTime/default: 86400 is too large, allowed is at most 3600"),
        (
            "MinRAM: {default: 4000}, MaxRAM: {default: 2000}",
            "MinRAM/default: 4000 MB is more than MaxRAM, 2000 MB",
        ),
        ("AllowedJobTypes: [User], jobtype: {default: MC}", "jobtype/default: 'MC', allowed are"),
    ],
)
def test_a_default_that_no_description_could_have_is_refused_with_its_line(declared: str, said: str) -> None:
    text = f"Operations:\n  cms:\n    JobDescription: {{{declared}}}\n"
    [found] = validate.report(text, "o.yaml").errors
    assert f"Operations/cms/JobDescription/{said}" in str(found)
    assert found.line == 3


def test_a_default_of_everybody_is_refused_again_where_a_vo_has_other_bounds() -> None:
    found = errors(
        "{Defaults: {JobDescription: {MinRAM: {default: 10}}}, cms: {},"
        " atlas: {JobDescription: {MinRAM: {min: 20}}}}"
    )
    assert [each.partition(":")[0] for each in found] == ["Operations/atlas/JobDescription/MinRAM/default"]


@pytest.mark.parametrize("name", ["RunningLimit", "MatchingDelay"])
@pytest.mark.parametrize("value", ["5", "[a]", "[]"])
def test_limits_are_a_section_and_nothing_else(name: str, value: str) -> None:
    found = errors(f"{{Defaults: {{JobScheduling: {{{name}: {value}}}}}}}")
    if value == "[]":
        assert not found
    else:
        assert [f"{name}: a section is needed here: {{LCG.CERN.ch:" in each for each in found] == [True]
