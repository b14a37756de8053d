from collections.abc import Collection
from pathlib import Path

import pytest

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.options import bounds
from cs_config.tree import parameters
from requirements import quantities
from requirements.errors import did_you_mean

TREE = """\
Resources:
  Sites:
    LCG.CERN.ch:
      CEs:
        ce01:
          {line}
          Queues:
            long: {{}}
"""


CE = "Resources/Sites/LCG.CERN.ch/CEs/ce01"


def ce_with(line: str) -> str:
    return TREE.format(line=line)


def errors(text: str) -> list[str]:
    return [str(problem) for problem in validate.report(text, "resources.yaml").errors]


def test_a_misspelled_parameter_is_an_error_that_names_the_right_one() -> None:
    (found,) = errors(ce_with("MaxRamm: 4000"))
    assert found == f"{CE}/MaxRamm: unknown parameter, did you mean MaxRAM? (resources.yaml:6)"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MaxRM", "MaxRAM"),
        ("NumberOfProcesors", "NumberOfProcessors"),
        ("maxCPUTmie", "maxCPUTime"),
        ("Tags", "Tag"),
        ("RequiredTags", "RequiredTag"),
        ("GPU", "GPUs"),
        ("Enabld", "Enabled"),
    ],
)
def test_slips_of_the_pen_are_errors(name: str, meant: str) -> None:
    assert f"did you mean {meant}?" in errors(ce_with(f"{name}: 1"))[0]


@pytest.mark.parametrize(
    "name",
    [
        *("SiteName", "LocalColour", "CPUModel", "SoftwareTag", "x", "glidein.cap", "Größe", "MinRAM"),
        *("CPUVendor", "CPUMemory", "GPUVendors", "GPUVendor", "GPURuntime"),
        *("GlueCEPolicyMaxWallClockTime", "GlueCEPolicyMaxTotalJobs", "OSName", "OSVersion"),
    ],
)
def test_a_sites_own_names_are_accepted(name: str) -> None:
    report = validate.report(ce_with(f"{name}: 1"), "resources.yaml")
    assert report.errors == report.warnings == ()


def test_a_name_that_is_only_like_a_known_one_is_a_warning_once() -> None:
    text = ce_with("CPUType: fast\n          VOs: {cms: {CPUType: slow}}")
    report = validate.report(text, "resources.yaml")
    assert report.configuration is not None
    (warning,) = report.warnings
    said = "not a parameter of the system (kept as the site's own), did you mean CEType?"
    assert str(warning) == f"{CE}/CPUType: {said} (resources.yaml:6)"


LIMITS = """
Resources:
  Sites:
    LCG.A.org:
      VO: [biomed]
      RunningLimit: {VO: {biomd: 3, BioMed: 4}, JobType: {Any: 1}}
      MatchingDelay: {Burst: {VO: {dune: 2}}, VO: {dune: 1}}
      CEs:
        ce1: {RunningLimit: {OwnerGroup: {cms_usr: 3, tokens: 3}, Owner: {cms_usr: 1}}, Queues: {long: {}}}
Registry: {Groups: {cms_user: {VO: cms}}}
Operations:
  Defaults:
    JobDescription: {AllowedJobTypes: [User, Merge]}
    JobScheduling:
      RunningLimit:
        allsites: {VO: {Cms: 3, cmss: 3}}
        LCG.A.org: {CEs: {ce1: {JobType: {Merg: 2, merge: 2}}}}
        OSG.B.edu: {VO: {cms: 3}}
"""


def test_limits_of_what_does_not_exist_are_warnings_with_the_nearest_name() -> None:
    report = validate.report(LIMITS, "r.yaml")
    assert report.errors == ()
    operations, site = "Operations/Defaults/JobScheduling/RunningLimit", "Resources/Sites/LCG.A.org"
    groups = f"{site}/CEs/ce1/RunningLimit/OwnerGroup"
    names = "nothing else in the configuration names this"
    assert {str(each) for each in report.warnings} == {
        f"{operations}/OSG.B.edu: {names} Site (r.yaml:18)",
        f"{operations}/allsites/VO/cmss: {names} VO, did you mean cms? (r.yaml:16)",
        f"{operations}/LCG.A.org/CEs/ce1/JobType/Merg: {names} JobType, did you mean Merge? (r.yaml:17)",
        f"{site}/RunningLimit/VO/biomd: {names} VO, did you mean biomed? (r.yaml:6)",
        f"{site}/MatchingDelay/Burst/VO/dune: {names} VO (r.yaml:7)",
        f"{site}/MatchingDelay/VO/dune: {names} VO (r.yaml:7)",
        f"{groups}/cms_usr: {names} OwnerGroup, did you mean cms_user? (r.yaml:9)",
    }


def test_limits_of_vos_are_no_warnings_where_no_vo_is_named() -> None:
    text = "Operations: {Defaults: {JobScheduling: {RunningLimit: {AllSites: {VO: {cms: 3}}}}}}\n"
    assert validate.report(text, "r.yaml").warnings == ()


def with_idle_limits(number: int) -> str:
    limits = ", ".join(f"S{each}: {{VO: {{cms: 1}}}}" for each in range(number))
    places = "Resources: {Sites: {A: {VO: [cms]}}}"
    return f"{places}\nOperations: {{Defaults: {{JobScheduling: {{RunningLimit: {{{limits}}}}}}}}}\n"


def test_a_text_has_a_bounded_number_of_warnings_of_limits() -> None:
    assert len(validate.report(with_idle_limits(200), "r.yaml").warnings) == 200
    assert len(validate.report(with_idle_limits(bounds.NAMED + 1), "r.yaml").warnings) == bounds.NAMED


def test_a_bounded_number_of_unknown_names_of_limits_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def compare(name: str, known: Collection[str]) -> str | None:
        compared.append(name)
        return did_you_mean(name, known)

    monkeypatch.setattr(validate, "did_you_mean", compare)
    limits = [", ".join(f"token{number}: 1" for number in range(first, first + 60)) for first in (0, 60, 0)]
    sites = "".join(
        f"    S{site}: {{RunningLimit: {{OwnerGroup: {{{groups}}}}}}}\n" for site, groups in enumerate(limits)
    )
    text = f"Registry: {{Groups: {{cms_user: {{VO: cms}}}}}}\nResources:\n  Sites:\n{sites}"
    assert validate.report(text, "r.yaml").errors == ()
    assert compared == [f"token{number}" for number in range(100)]


def test_a_name_that_the_operations_declare_is_meant_as_it_is() -> None:
    text = (
        ce_with("MaxRamm: 4000") + "Operations: {Defaults: {JobDescription: {Memory: {resource: MaxRamm}}}}\n"
    )
    assert errors(text) == []


def test_known_names_are_known_in_any_case() -> None:
    assert errors(ce_with("maxram: 4000")) == []
    assert "allowed is a number of MB" in errors(ce_with("maxram: much"))[0]


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("MaxRAM: '4000'", "a number of MB"),
        ("MaxRAM: -1", "a number of MB from 0 to"),
        ("MaxRAM: true", "a number of MB"),
        ("MaxRAM: [1, 2]", "a number of MB"),
        ("NumberOfProcessors: 1.5", "a whole number"),
        ("MaxTotalJobs: many", "a whole number"),
        ("Enabled: yes", "true or false"),
        ("Enabled: 'false'", "true or false"),
        ("WholeNode: 1", "true or false"),
        ("CEType: [a]", "a text"),
        ("Tag: 'a, b'", "a text or a list of texts"),
        ("Tag: [1]", "a text or a list of texts"),
        ("VO: cms, atlas", None),
        ("VO: 'cms, atlas'", "names of VOs: [atlas, cms]"),
        ("NumberOfNodes: some", "a number or a range"),
    ],
)
def test_known_parameters_have_types(line: str, allowed: str | None) -> None:
    found = errors(ce_with(line))
    assert len(found) == 1
    assert found[0].startswith("Resources/Sites/LCG.CERN.ch/CEs/ce01/")
    assert allowed is None or f"allowed is {allowed}" in found[0]


@pytest.mark.parametrize(
    "line", ["NumberOfNodes: 4", "NumberOfNodes: 1-4", "Tag: a", "VO: cms", "VO: []", "Platform: [a, b]"]
)
def test_known_parameters_in_their_forms(line: str) -> None:
    assert errors(ce_with(line)) == []


@pytest.mark.parametrize("line", ["own: [1, null]", "own: .inf", "own: 0x10", "own: 99999999999999999999"])
def test_values_that_cannot_be_compared_are_errors(line: str) -> None:
    assert len(errors(ce_with(line))) == 1


def test_unknown_levels_are_errors() -> None:
    (found,) = errors(ce_with("Queuez: {a: {}}"))
    allowed = "Queues, VOs, Throttle, RunningLimit, NodeAttributes, Forwarding and parameters with a value"
    said = f"unknown level, allowed here are {allowed}, did you mean Queues?"
    assert found == f"{CE}/Queuez: {said} (resources.yaml:6)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Resource: {}", "allowed here are Resources, Operations, Registry, did you mean Resources?"),
        (
            "Resources: {Site: {}}",
            "Resources/Site: unknown level, allowed here are Sites, Computing, did you mean Sites?",
        ),
        ("Resources: 5", "Resources: 5 is a value, a section is needed here"),
        ("Resources: {Sites: [a]}", "Resources/Sites: ['a'] is a value, a section is needed here"),
        ("Resources: {Sites: {A: 5}}", "Resources/Sites/A: 5 is a value, a site is a section of parameters"),
        ("Resources: {Sites: {A B: {}}}", "Resources/Sites/A B: 'A B' is not a valid name of a site"),
        ("Resources: {Sites: {A: {ces: {}}}}", "Resources/Sites/A/ces: unknown level, did you mean CEs?"),
        ("Resources: {Sites: {A: {CEs: 5}}}", "Resources/Sites/A/CEs: a section of CE names is needed here"),
        (
            "Resources: {Sites: {A: {Queues: {}}}}",
            "A/Queues: unknown level, allowed here are CEs, VOs, Throttle, RunningLimit, MatchingDelay",
        ),
        (
            "Resources: {Sites: {A: {VOs: [cms]}}}",
            "Resources/Sites/A/VOs: a section of VO names is needed here",
        ),
        ("Resources: {Sites: {A: {VOs: {cms: {B: {}}}}}}", "Resources/Sites/A/VOs/cms/B: unknown level"),
        ("Resources: {Sites: {A: {VOs: {c/s: {}}}}}", "'c/s' is not a valid name of a VO"),
        ("Resources: {Sites: {A: {a/b: 1}}}", "'a/b' is not a valid name of a parameter"),
        ("Resources: {Sites: {A: {'': 1}}}", "'' is not a valid name of a parameter"),
        (
            "Resources: {Computing: {OSCompatibility: {el9: {}}}}",
            "OSCompatibility/el9: a list of the platforms",
        ),
        ("Resources: {Computing: {CEDefaults: {}}}", "Computing/CEDefaults: unknown level"),
        ("Registry: {Roles: {}}", "Registry/Roles: unknown level, allowed here are VO, Groups, Users, Hosts"),
    ],
)
def test_what_stands_at_the_wrong_place_is_an_error(text: str, said: str) -> None:
    found = errors(f"{text}\n")
    assert len(found) == 1
    assert said in found[0]
    assert found[0].endswith("(resources.yaml:1)")


@pytest.mark.parametrize("name", ["Throttle", "RunningLimit", "Queues"])
def test_a_value_of_a_vo_that_was_a_parameter_in_1_0_remains_readable(name: str) -> None:
    assert errors(f"Resources: {{Sites: {{A.B.ch: {{VOs: {{lhcb: {{{name}: 5}}}}}}}}}}\n") == []
    assert errors(f"Resources: {{Sites: {{A.B.ch: {{VOs: {{lhcb: {{{name}: {{a: 5}}}}}}}}}}}}\n")


def test_all_problems_are_reported_in_the_order_of_their_lines() -> None:
    text = (
        ce_with("MaxRAM: much\n          CEType: 5")
        + "Operation: {}\nRegistry: {Groups: {g: {JobShare: -1}}}\n"
    )
    assert [problem.line for problem in validate.report(text, "r.yaml").errors] == [6, 7, 10, 11]


@pytest.mark.parametrize(
    ("name", "why"), [("gone.yaml", "No such file or directory"), ("", "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path / name}: cannot be read: {why}"):
        validate.load_file(tmp_path / name)


def test_a_value_that_may_be_of_several_types_is_one_error_at_its_own_path() -> None:
    (found,) = errors("Operations:\n  Defaults:\n    JobDescription:\n      Priority: {max: x}\n")
    path = "Operations/Defaults/JobDescription/Priority/max"
    assert found == f"{path}: 'x' is not allowed here, allowed is a number (resources.yaml:4)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "RunningLimit: {JobTyp: {x: 1}}",
            "A/RunningLimit: A/JobTyp: no attribute of a job, did you mean JobType?",
        ),
        (
            "RunningLimit: {JobType: {x: -1}}",
            "A/JobType/x: -1 is not a number of jobs, allowed are 0 to 1000000000",
        ),
        ("RunningLimit: 5", "A/RunningLimit: a section is needed here: {JobType: {Merge: 50}}"),
        ("MatchingDelay: {Owner: {x: soon}}", "A/Owner/x: 'soon' is not a number of seconds"),
        (
            f"RunningLimit: {{JobName: {{{', '.join(f'n{each}: 1' for each in range(101))}}}}}",
            "A/RunningLimit: A: 101 limits, 100 are allowed at one place",
        ),
        ("CEs: {c: {MatchingDelay: {Owner: {x: 1}}}}", "A/CEs/c/MatchingDelay: unknown level"),
        ("CEs: {c: {RunningLimit: {CEs: {x: 1}}}}", "A/c/CEs: no attribute of a job"),
        ("VOs: {cms: {RunningLimit: {Owner: {x: 1}}}}", "VOs/cms/RunningLimit: unknown level"),
    ],
)
def test_limits_of_a_site_are_checked(text: str, said: str) -> None:
    (found,) = errors(f"Resources: {{Sites: {{A: {{{text}}}}}}}\n")
    assert said in found


QUEUE = "Resources: {{Sites: {{S: {{CEs: {{C: {{Queues: {{Q: {{{}}}}}}}}}}}}}}}\n"


def test_texts_that_expressions_read_are_bounded_but_not_the_expressions_of_the_tree() -> None:
    long = "x" * 4097
    for written, message in (
        (f"A: {long}", "Q/A: has 4097 characters, allowed are 4096"),
        (f"A: [a, {long}]", "Q/A: has 4097 characters in one item, allowed are 4096"),
        (f"NodeAttributes: {{OS: [a, {long}]}}", "Q/NodeAttributes/OS: has 4097 characters"),
        (f"VOs: {{lhcb: {{A: {long}}}}}", "Q/VOs/lhcb/A: has 4097 characters"),
    ):
        with pytest.raises(ConfigError, match=message):
            validate.parse(QUEUE.format(written))
    terms = " || ".join(f'other.Owner == "owner{number}"' for number in range(200))
    assert validate.parse(QUEUE.format(f"Requirements: '{terms}'"))


@pytest.mark.parametrize("written", ["Tag: [5.10, 11]", "RequiredTag: 5.10", "SE: 11", "BatchQueue: 7"])
def test_numbers_where_names_stand_are_refused_with_what_to_write(written: str) -> None:
    with pytest.raises(ConfigError, match=r"is not allowed here.*write a number that is a name in quotes"):
        validate.parse(QUEUE.format(written))


def test_unquoted_versions_are_reported() -> None:
    for written in ("OSVersion: 9.10", "KernelRelease: [9.10, '9.4']", "VOs: {lhcb: {OSVersion: 9.10}}"):
        [warning] = validate.parse(QUEUE.format(written)).warnings
        assert warning.message == "9.1 is a number, as which 9.10 is 9.1; write versions in quotes"
    nodes = "NodeAttributes: {{OSVersion: {}}}".format
    found = validate.parse(QUEUE.format(nodes("[9.10, 9.4]"))).warnings
    assert [each.message.partition(" is")[0] for each in found] == ["9.1", "9.4"]
    right = (
        "OSVersion: '9.10'",
        "OSVersion: 9",
        "OSVersion: 9.4.1",
        "Factor: 9.25",
        nodes("['9.10', '9.4']"),
    )
    for written in right:
        assert validate.parse(QUEUE.format(written)).warnings == ()


@pytest.mark.parametrize(
    ("written", "lost"),
    [
        ("MySoft: 5.10", "5.10"),
        ("MySoft: 3.0", "3.0"),
        ("MySoft: [5.2, 5.10]", "5.10"),
        ("MySoft:\n    - 5.2\n    - 5.10", "5.10"),
        ("NodeAttributes: {MySoft: [5.2, 5.10]}", "5.10"),
        ("VOs: {lhcb: {MySoft: 5.10}}", "5.10"),
        ("MySoft: 5.1 # 5.10 before", None),
        ("MySoft: 5.12", None),
        ("MySoft: '5.10'", None),
        ("MySoft: 5.10.0", None),
        ("MySoft: 510", None),
        ("CPUNormalizationFactor: 10.50", None),
        ("GlueHostBenchmarkSF00: 10.50", None),
        ("Load: 1.0", None),
        ("Declared: 5.10", None),
    ],
)
def test_a_number_that_loses_zeros_may_be_a_version_where_nothing_says_what_it_is(
    written: str, lost: str | None
) -> None:
    site = f"Resources:\n Sites:\n  S:\n   {written}\n   CEs: {{C: {{Queues: {{Q: {{}}}}}}}}\n"
    declared = "Operations: {Defaults: {JobDescription: {Declared: {type: number}}}}\n"

    found = validate.parse(site + declared).warnings

    assert [(each.path.rpartition("/")[2], each.message, each.line) for each in found] == [
        ("MySoft", f'{lost} is read as the number {float(lost):g}; if it is a version, write "{lost}"', 4)
        for lost in (lost,)
        if lost is not None
    ]


def test_of_a_name_at_many_queues_one_number_is_warned_of() -> None:
    queues = ", ".join(f"q{number}: {{MySoft: 5.10, Factor: 1.50}}" for number in range(20))
    found = validate.parse(
        f"Resources: {{Sites: {{S: {{CEs: {{C: {{Queues: {{{queues}}}}}}}}}}}}}\n"
    ).warnings
    assert [each.path.rpartition("/")[2] for each in found] == ["MySoft", "Factor"]


def test_every_name_of_a_version_is_one():
    for name in sorted(parameters.SOFTWARE | quantities.VERSIONS):
        found = validate.parse(QUEUE.format(f"{name}: 5.10")).warnings
        assert [each.message for each in found if "quotes" in each.message] == [
            "5.1 is a number, as which 9.10 is 9.1; write versions in quotes"
        ], name
        for right in ("'5.10'", "5", "5.10.2"):
            found = validate.parse(QUEUE.format(f"{name}: {right}")).warnings
            assert not [each for each in found if "quotes" in each.message], (name, right)


RULES = """
Operations: {cms: {JobDescription: {Clamp: true, MaxInputData: 1}}}
Registry: {Groups: {cms_user: {VO: cms, JobShare: 1}, cms_prod: {VO: cms}}}
"""


def test_rules_that_stand_there_as_before_are_not_read_again() -> None:
    before = validate.parse(RULES)
    after = validate.parse("Resources: {Sites: {LCG.A.ch: {}}}\n# moved\n" + RULES, earlier=before)
    assert after.vo_operations["cms"] is before.vo_operations["cms"]
    assert after.default_operations is before.default_operations
    assert after.registry is before.registry
    assert after.sites == {"LCG.A.ch"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("MaxInputData: 1", "MaxInputData: 2"),
        ("JobShare: 1", "JobShare: 1.5"),
        ("cms_user: {VO: cms, JobShare: 1}, cms_prod: {VO: cms}", "cms_prod: {VO: cms}, cms_user: {VO: cms}"),
        ("Clamp: true", "Clamp: true, AllowedJobTypes: [User]"),
        ("Registry: {Groups: {cms_user: {VO: cms, JobShare: 1}, cms_prod: {VO: cms}}}", "Registry: {}"),
        ("Operations: {cms: {JobDescription: {Clamp: true, MaxInputData: 1}}}", ""),
    ],
)
def test_changed_rules_are_those_of_the_new_text(old: str, new: str) -> None:
    text = RULES.replace(old, new)
    assert text != RULES
    found, right = validate.parse(text, earlier=validate.parse(RULES)), validate.parse(text)
    assert found.vo_operations == right.vo_operations
    assert found.default_operations == right.default_operations
    assert found.registry == right.registry
    assert list(found.registry.groups) == list(right.registry.groups)


@pytest.mark.parametrize("wrong", ["Clamp: 1", "MaxInputData: true", "MaxInputData: 1.0e+400"])
def test_a_rule_that_is_only_equal_to_a_valid_one_is_wrong_all_the_same(wrong: str) -> None:
    name = wrong.partition(":")[0]
    text = RULES.replace("Clamp: true" if name == "Clamp" else "MaxInputData: 1", wrong)
    with pytest.raises(ConfigError, match=name):
        validate.parse(text, earlier=validate.parse(RULES))


@pytest.mark.parametrize(
    ("floors", "is_warned"), [("cms: 40, dune: 9", True), ("cms: 40, dune: 8", False), ("cms: 90%", False)]
)
def test_floors_beyond_what_pilots_of_all_queues_have_are_warned_of(floors: str, is_warned: bool) -> None:
    text = f"""
Resources:
  Sites:
    LCG.A.org:
      MaxTotalJobs: 8
      Floors: {{{floors}}}
      CEs: {{ce1: {{Queues: {{long: {{NumberOfProcessors: 4}}, short: {{MaxTotalJobs: 16}}}}}}}}
Registry: {{VO: {{cms: {{}}, dune: {{}}}}}}
"""
    warnings = [str(each) for each in validate.report(text, "r.yaml").warnings]
    said = "the floors are 49 cores together, pilots of its queues have 48 at most"
    assert any(said in each for each in warnings) is is_warned
    unstated = text.replace("      MaxTotalJobs: 8\n", "")
    assert not any("the floors are" in str(each) for each in validate.report(unstated, "r.yaml").warnings)


def test_a_floor_of_an_unknown_vo_is_warned_of() -> None:
    text = "Resources: {Sites: {LCG.A.org: {Floors: {cmss: 5}, CEs: {}}}}\nRegistry: {VO: {cms: {}}}\n"
    [warning] = validate.report(text, "r.yaml").warnings
    assert "Resources/Sites/LCG.A.org/Floors/cmss" in str(warning)
    assert "did you mean cms?" in str(warning)
