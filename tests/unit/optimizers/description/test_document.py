"""The document of DiracX's match-making specification as a description."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cs_config import validate
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from optimizers.description import document, jdl
from optimizers.description.description import JobDescription, parse_description, stored_body
from requirements.errors import InvalidJob
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.class_derivation import CLASSIFIED, derive_class


def options(declared: str = "") -> VoOptions:
    text = f"Registry: {{VO: {{cms: {{}}}}}}\nOperations: {{Defaults: {{JobDescription: {{{declared}}}}}}}\n"
    return options_for(validate.parse(text, version=1), "cms")


OPTIONS = options()
DOCUMENT = """
executable: x
requirements:
  system: {name: Linux}
  cpu_work_db12: 1000000
  wall_time: 86400
  cpu:
    num_cores: {min: 1, max: 128}
    ram_mb: {request: {overhead: 512, per_core: 256}, limit: {overhead: 768, per_core: 256}}
    architecture: {name: x86_64, level: x86-64-v3}
  gpu: {vendor: nvidia, arch: sm_89, vram_mb_per_gpu: 16384, count: {min: 1, max: 4}}
  io: {scratch_mb: 12040}
  tags: "cvmfs:lhcb & (os:el9 | os:ubuntu26) & hostfeat:fuse_overlayfs"
sites: [SiteA]
"""
JDL = """
Executable = "x"; System = "Linux"; CPUWorkDB12 = 1000000; WallTime = 86400; Site = "SiteA";
MinScratch = 12040; MinNumberOfProcessors = 1; MaxNumberOfProcessors = 128; MinRAM = 512; MinRAMPerCore = 256;
Architecture = "x86_64"; CPULevel = "x86-64-v3"; GPUs = 1; MaxGPUs = 4; GPUVendor = "nvidia";
GPUArchitecture = "sm_89"; GPUMemory = 16384;
TagExpression = "cvmfs:lhcb&hostfeat:fuse_overlayfs & (os:ubuntu26|os:el9)";
"""
X86 = {"architecture": {"name": "x86_64", "level": "x86-64-v2"}}


def asking(arch: object = X86["architecture"], **more: object) -> dict[str, Any]:
    """Requirements without a fault, but for what is given: sections of their own, or else of the CPU."""
    beside = {name: more.pop(name) for name in ("wall_time", "gpu", "tags") if name in more}
    return {"wall_time": 9, "cpu": {"architecture": arch, **more}, **beside}


def parse(text: str, vo: VoOptions = OPTIONS) -> JobDescription:
    [raw] = jdl.read_descriptions(text)
    return parse_description(raw, vo)


def derive(read: JobDescription, vo: VoOptions = OPTIONS) -> RequirementClass:
    return derive_class("cms", {name: getattr(read, name) for name in CLASSIFIED if read.states(name)}, vo)


def refuse(
    requirements: Mapping[str, Any], vo: VoOptions = OPTIONS, **beside: object
) -> list[tuple[str, str, str | None]]:
    with pytest.raises(InvalidJob) as refused:
        parse_description({"executable": "x", "requirements": requirements, **beside}, vo)
    return [(each.path, each.message, each.code) for each in refused.value.problems]


def test_it_is_stored_as_it_is_written_and_read_again() -> None:
    [written] = jdl.read_descriptions(DOCUMENT)
    body = stored_body(parse_description(written, OPTIONS))
    assert body == {"Executable": "x", "requirements": written["requirements"], "sites": ["SiteA"]}
    again = parse_description(json.loads(json.dumps(body)), OPTIONS, is_accepted=True)
    assert stored_body(again) == body
    assert derive(again) == derive(parse(DOCUMENT))


def test_a_jdl_of_the_same_job_has_the_same_task_queue() -> None:
    assert derive(parse(JDL)).digest == derive(parse(DOCUMENT)).digest
    assert derive(parse(JDL)).submit_pool is None


def test_what_it_leaves_out_has_the_defaults_of_the_vo_that_fit() -> None:
    vo = options(
        "CPUTime: {default: 500}, MinRAM: {default: 700}, CPULevel: {default: x86-64-v2},"
        " Architecture: {default: x86_64}, NumberOfProcessors: {default: 4}"
    )

    def ask(cpu: Mapping[str, Any]) -> RequirementClass:
        return derive(
            parse_description({"executable": "x", "requirements": {"wall_time": 9, "cpu": cpu}}, vo), vo
        )

    plain = ask({})
    assert (plain.cpu_time, plain.min_ram, plain.cpu_level, plain.processors_min) == (0, 700, "x86-64-v2", 4)
    assert (plain.system, plain.gpus_max) == ("Linux", 0)
    arm = {"name": "aarch64", "profile": "armv8.0-a"}
    assert ask({"architecture": arm}).cpu_level == "armv8.0-a"
    assert ask({"architecture": {"required_features": ["avx"]}}).cpu_level == ""
    assert ask({"num_cores": {"min": 2}}).processors_max is None
    assert ask({"ram_mb": {"request": {"overhead": 0, "per_core": 9}, "limit": {"overhead": 9}}}).min_ram == 0


def test_defaults_that_what_it_states_excludes_are_left_out() -> None:
    vo = options(
        "Architecture: {default: x86_64}, CPUFeatures: {default: [avx2]}, MaxGPUs: {default: 4},"
        " GPUVendor: {default: nvidia}, GPUMemory: {default: 8000}"
    )

    def ask(architecture: Mapping[str, Any], **beside: object) -> RequirementClass:
        written = {"wall_time": 9, "cpu": {"architecture": architecture}, **beside}
        return derive(parse_description({"executable": "x", "requirements": written}, vo), vo)

    plain = ask({})
    assert (plain.architecture, plain.cpu_features) == ("x86_64", {"avx2"})
    assert ask({"level": "x86-64-v3"}).cpu_features == frozenset()
    assert ask({"required_features": ["avx512f"]}).cpu_features == {"avx512f"}
    arm = ask({"name": "aarch64", "profile": "armv8.0-a"})
    assert (arm.cpu_level, arm.cpu_features) == ("armv8.0-a", frozenset())
    other = ask({}, tags="arch:ppc64le")
    assert (other.architecture, other.cpu_features) == ("", frozenset())
    idle = ask({}, gpu={"count": {"min": 0}}, tags="gpu:opportunistic-cpu-ok")
    for each in (plain, arm, other, idle):
        assert (each.gpu_vendor, each.gpu_memory_mb) == ("", 0)
    assert (plain.gpus_max, idle.gpus_max) == (0, 65_535)
    gpus = ask({}, gpu={"arch": "sm_80", "count": {"min": 1}})
    assert (gpus.gpus_max, gpus.gpu_vendor, gpus.gpu_memory_mb) == (4, "nvidia", 8000)


def test_a_default_that_does_not_count_contradicts_nothing() -> None:
    vo = options("NumberOfProcessors: {default: 4}, MinRAM: {default: 2000}, MaxRAM: {default: 2500}")
    ram = {"request": {"overhead": 0, "per_core": 300}, "limit": {"overhead": 0, "per_core": 310}}
    written = asking(num_cores={"min": 8, "max": 8}, ram_mb=ram)
    asked = derive(parse_description({"executable": "x", "requirements": written}, vo), vo)
    assert (asked.processors_min, asked.min_ram, asked.min_ram_per_core) == (8, 0, 300)


def test_a_default_expression_may_have_the_architecture() -> None:
    vo = options("TagExpression: {default: 'arch:ppc64le'}")
    read = parse_description({"executable": "x", "requirements": {"wall_time": 9, "cpu": {}}}, vo)
    assert derive(read, vo).architecture == ""


def test_a_limit_is_compared_with_the_default_of_the_request() -> None:
    vo = options("MinRAM: {default: 2000}")
    below = asking(ram_mb={"limit": {"overhead": 100, "per_core": 50}})
    message = "100 is less than the request, 2000, its VO's default"
    assert refuse(below, vo) == [("requirements/cpu/ram_mb/limit/overhead", message, "invalid_spec")]
    [(place, _, _)] = refuse(asking(ram_mb={"limit": {"per_core": 3000}}), vo)
    assert place == "requirements/cpu/ram_mb/limit/overhead"
    enough = asking(ram_mb={"limit": {"overhead": 2000, "per_core": 0}})
    assert derive(parse_description({"executable": "x", "requirements": enough}, vo), vo).min_ram == 2000
    accepted = {"Executable": "x", "requirements": below}
    assert parse_description(accepted, vo, is_accepted=True).document is not None


@pytest.mark.parametrize(
    ("beside", "declared", "most", "whose"),
    [
        ({"MinRAM": 3000}, "MinRAM: {default: 2000}", 2500, "3000 (MinRAM)"),
        ({"minram": 3000}, "", 2500, "3000 (minram)"),
        ({}, "MinRAM: {default: 2000}, MinRAMPerCore: {default: 10}", 100, "2000, its VO's default"),
    ],
)
def test_a_limit_is_compared_with_the_request_wherever_it_is_stated(
    beside: Mapping[str, object], declared: str, most: int, whose: str
) -> None:
    vo = options(declared)

    def submit(overhead: int) -> JobDescription:
        written = asking(ram_mb={"limit": {"overhead": overhead, "per_core": 10}})
        return parse_description({"executable": "x", "requirements": written, **beside}, vo)

    with pytest.raises(InvalidJob) as refused:
        submit(most)
    assert [(each.path, each.message) for each in refused.value.problems] == [
        ("requirements/cpu/ram_mb/limit/overhead", f"{most} is less than the request, {whose}")
    ]
    assert submit(3000).document is not None


def test_a_limit_is_not_compared_with_a_default_that_does_not_count() -> None:
    vo = options("MinRAM: {default: 2000}")
    written = asking(ram_mb={"limit": {"overhead": 100, "per_core": 50}})
    source = {"executable": "x", "requirements": written, "MinRAMPerCore": 50}
    assert derive(parse_description(source, vo), vo).min_ram == 0


def test_a_number_that_was_stored_as_a_text_is_still_read() -> None:
    body = {"Executable": "x", "requirements": asking(wall_time="3600")}
    assert derive(parse_description(body, OPTIONS, is_accepted=True)).wall_time == 3600


def test_an_upper_bound_of_gpus_alone_is_refused_in_a_jdl_as_well() -> None:
    text = JDL.replace("GPUs = 1; MaxGPUs", "MaxGPUs")
    with pytest.raises(InvalidJob) as refused:
        parse(text)
    [problem] = refused.value.problems
    assert (problem.path, problem.code) == ("GPUs", "invalid_spec")
    assert problem.message.startswith("is missing beside at most 4; 0 also allows pilots without any")


def test_defaults_of_its_keywords_are_for_jobs_that_follow_the_specification() -> None:
    offered = options("Architecture: {default: x86_64}, CPULevel: {default: x86-64-v2}")
    assert derive(parse('Executable = "x";', offered), offered).architecture == ""
    required = options(
        "Specification: required, Architecture: {default: x86_64}, CPULevel: {default: x86-64-v2},"
        " WallTime: {default: 60}"
    )
    asked = derive(parse('Executable = "x";', required), required)
    assert (asked.architecture, asked.wall_time, asked.gpus_max, asked.cpu_time) == ("x86_64", 60, 0, 0)


def test_a_vo_may_require_it() -> None:
    with pytest.raises(InvalidJob) as refused:
        parse('Executable = "x"; CPUTime = 500;', options("Specification: required"))
    assert [(each.path, each.code) for each in refused.value.problems] == [
        ("CPUWorkDB12", "invalid_spec"),
        ("Architecture", "invalid_spec"),
    ]


def test_without_a_section_it_is_a_record_of_requirements_as_ever() -> None:
    flat = {"executable": "x", "requirements": {"wall_time": 60, "tags": "arch:ppc64le"}}
    assert parse_description(flat, OPTIONS).document is None
    required = options("Specification: required")
    read = parse_description(flat, required)
    assert read.document is not None
    assert parse_description(stored_body(read), OPTIONS, is_accepted=True).document == read.document


@pytest.mark.parametrize(
    ("architecture", "field", "message"),
    [
        ({"name": "aarch64", "level": "x86-64-v3"}, "level", "is not for aarch64, which has profile"),
        ({"name": "x86_64", "profile": "armv8.0-a"}, "profile", "is not for x86_64, which has level"),
        ({"name": "x86_64", "level": "x86-64-v9"}, "level", '"x86-64-v9", allowed are x86-64-v1, '),
        ({"name": "x86_64", "level": 3}, "level", "3, allowed are x86-64-v1, "),
    ],
)
def test_a_wrong_level_is_one_problem(architecture: Mapping[str, Any], field: str, message: str) -> None:
    [(path, seen, code)] = refuse(asking(arch=architecture))
    assert (path, code) == (f"requirements/cpu/architecture/{field}", "invalid_spec")
    assert seen.startswith(message)


def test_a_tag_that_excludes_an_architecture_states_none() -> None:
    tags = "~arch:ppc64le"
    assert refuse({"wall_time": 9, "cpu": {}, "tags": tags})[0][0] == "requirements/cpu/architecture/name"
    read = parse_description(
        {"executable": "x", "requirements": {"wall_time": 9, "cpu": X86, "tags": tags}}, OPTIONS
    )
    assert derive(read).architecture == "x86_64"


def test_missing_keywords_are_explained_by_those_of_the_specification_that_a_job_states() -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_description({"Executable": "x", "MinScratch": 100, "WallTime": 60}, OPTIONS)
    [problem] = caught.value.problems
    assert problem.path == "Architecture"
    assert problem.message.endswith("(jobs with MinScratch, WallTime follow DiracX's specification)")


def test_unknown_kinds_of_hardware_are_kept_and_wait() -> None:
    requirements = {
        "wall_time": 5,
        "cpu": {"architecture": {"name": "riscv64", "vector": 256}},
        "gpu": {"vendor": "amd", "arch": "gfx90a", "wavefront": 64, "count": {"min": 1}},
    }
    read = parse_description({"executable": "x", "requirements": requirements}, OPTIONS)
    assert stored_body(read)["requirements"] == requirements
    assert derive(read).architecture == "riscv64"


@pytest.mark.parametrize(
    ("requirements", "path", "message"),
    [
        ({"cpu": X86}, "cpu_work_db12", "is missing, and so is wall_time: one of the two is needed"),
        ({"wall_time": 9, "io": {}}, "cpu/architecture/name", "is missing, and the VO has no default"),
        (asking(arch={"name": "x86_64"}), "cpu/architecture/name", "x86_64 needs a level"),
        (
            asking(arch={"name": "aarch64", "required_features": ["mte"]}),
            "cpu/architecture/name",
            "aarch64 needs a level",
        ),
        (
            asking(arch={"name": "x86_64", "level": "x86-64-v2", "required_features": ["avx"]}),
            "cpu/architecture/required_features",
            "are stated beside the level x86-64-v2",
        ),
        (asking(tags="arch:ppc64le"), "cpu/architecture/name", "x86_64: the tags require an architecture as"),
        (
            asking(arch={"level": "x86-64-v3"}, tags="arch:ppc64le"),
            "cpu/architecture/level",
            "x86-64-v3: the tags require an architecture as",
        ),
        (
            asking(arch={"required_features": ["vsx"]}, tags="arch:ppc64le"),
            "cpu/architecture/required_features",
            "vsx: the tags require an architecture as",
        ),
        (
            asking(ram_mb={"request": {"overhead": 5}}),
            "cpu/ram_mb/limit/per_core",
            "is missing: where the request is 0",
        ),
        (
            asking(
                ram_mb={"request": {"overhead": 5, "per_core": 1}, "limit": {"overhead": 4, "per_core": 1}}
            ),
            "cpu/ram_mb/limit/overhead",
            "4 is less than the request, 5",
        ),
        (asking(gpu={"count": {"min": 1}, "arch": "sm_80"}), "gpu/vendor", "is missing"),
        (
            asking(gpu={"count": {"min": 1}, "vendor": "nvidia", "arch": "8.9"}),
            "gpu/arch",
            "8.9, allowed is sm_ and a number",
        ),
        (asking(gpu={"vendor": "nvidia"}), "gpu/vendor", "nvidia: the job has no GPU"),
        (asking(gpu={}), "gpu/count", "is missing; a job without any has no section gpu"),
        (asking(gpu={"count": {"max": 4}}), "gpu/count/min", "is missing beside at most 4; 0 also allows"),
        (
            asking(gpu={"vendor": "nvidia", "arch": "sm_80", "count": {"max": 4}}),
            "gpu/count/min",
            "is missing beside at most 4",
        ),
        (asking(tags="a &"), "tags", '"a &" ends where a tag, ~ or ( is needed'),
        (asking(tags="a b"), "tags", "\"a b\" has 'b' at character 3"),
        (asking(tags="site:CERN"), "tags", "site:CERN: has a field of its own, sites"),
        (asking(tags="gpu:nvidia"), "tags", "gpu:nvidia: has a field of its own"),
        (asking(tags="8Processors"), "tags", "8Processors: has a field of its own"),
        (asking(wall_time="long"), "wall_time", '"long", allowed is a whole number'),
        (asking(wall_time="3600"), "wall_time", '"3600", allowed is a whole number'),
        (
            asking(ram_mb={"request": {"overhead": "512", "per_core": 256}}),
            "cpu/ram_mb/request/overhead",
            '"512", allowed is a whole number',
        ),
        (
            asking(
                ram_mb={
                    "request": {"overhead": 512.0, "per_core": 1},
                    "limit": {"overhead": 100, "per_core": 2.5},
                }
            ),
            "cpu/ram_mb/limit/overhead",
            "100 is less than the request, 512 (requirements/cpu/ram_mb/request/overhead)",
        ),
        (
            asking(ram_mb={"request": {"overhead": 5, "per_core": 1}, "limit": {"overhead": 5.5}}),
            "cpu/ram_mb/limit/overhead",
            "5.5, allowed is a whole number from 0",
        ),
        (
            asking(ram_mb={"limit": {"overhead": 1.7e308, "per_core": 1}}),
            "cpu/ram_mb/limit/overhead",
            "1.7e+308, allowed is a whole number from 0 to 9007199254740991",
        ),
        (asking(num_cors={"min": 1}), "cpu/num_cors", "is unknown, there are"),
        (asking(num_cores=8), "cpu/num_cores", "8, a section is needed here"),
        (
            asking(num_cores={"min": 4, "max": 2}),
            "cpu/num_cores/min",
            "4 is more than MaxNumberOfProcessors, 2",
        ),
    ],
)
def test_each_fault_is_refused_at_its_place(requirements: Mapping[str, Any], path: str, message: str) -> None:
    problems = refuse(requirements)
    assert (f"requirements/{path}", "invalid_spec") in [(where, code) for where, _, code in problems]
    assert any(seen.startswith(message) for where, seen, _ in problems if where == f"requirements/{path}"), (
        problems
    )


def test_allowed_and_banned_sites_exclude_each_other() -> None:
    problems = refuse({"wall_time": 9, "cpu": X86}, sites=["A"], banned_sites=["B"])
    assert problems == [
        ("banned_sites", "are stated beside sites: a job states one of the two", "invalid_spec")
    ]
    read = parse_description(
        {"executable": "x", "requirements": {"wall_time": 9, "cpu": X86}, "banned_sites": ["B"]}, OPTIONS
    )
    assert derive(read).banned_sites == {"B"}


def test_a_keyword_beside_its_field_is_named_twice() -> None:
    [(path, message, _)] = refuse({"wall_time": 9, "cpu": X86}, WallTime=8)
    assert (path, message) == ("WallTime", "named twice, the other time as requirements/wall_time")


def test_a_vos_own_keyword_of_a_new_name_stays_its_own() -> None:
    vo = options("Extra: [WallTime, Architecture]")
    read = parse('Executable = "x"; WallTime = "short"; Architecture = "any";', vo)
    assert read.extra == {"WallTime": "short", "Architecture": "any"}
    assert derive(read, vo) == derive(parse('Executable = "x";', vo), vo)


def test_the_table_for_users_has_the_keyword_of_each_field() -> None:
    page = (Path(__file__).parents[4] / "docs" / "user" / "matching-document.md").read_text()
    rows = re.findall(r"^\| (?:beside it: )?`([a-z_0-9.]+)` \| `([A-Za-z0-9]+)` \|", page, re.MULTILINE)
    fields = {path.replace("/", "."): keyword for path, keyword in document.FIELDS.items()}
    assert dict(rows) == fields | dict(document.SITES)


def test_a_stored_description_gets_the_defaults_that_hold_for_it() -> None:
    declared = "MinRAM: {default: 700}, Architecture: {default: x86_64}, MaxRAM: {default: 900}"
    plain = {"Executable": "x", "Requirements": {"Architecture": "x86_64", "Memory": 1}}
    written = {"Executable": "x", "requirements": {"wall_time": 9, "io": {"scratch_mb": 1}}}
    ours = {"CPUTime": 86_400, "Priority": 1, "MinRAM": 700, "MaxRAM": 900}
    of_document = {"Priority": 1, "MaxRAM": 900}
    offered, required = options(declared), options(f"Specification: required, {declared}")
    for vo, body, expected in (
        (offered, plain, ours),
        (offered, written, of_document),
        (offered, {"Executable": "x", "WallTime": 9}, of_document),
        (required, plain, of_document),
    ):
        assert vo.job_description.list_defaults(body) == expected
        found = vo.job_description.list_defaults_json(json.dumps(body)).values()
        assert json.loads(f"{{{','.join(found)}}}") == expected


def test_a_document_follows_the_specification_whatever_it_leaves_out() -> None:
    cores = {"cpu": {"num_cores": {"min": 2}}}
    missing = ["requirements/cpu_work_db12", "requirements/cpu/architecture/name"]
    assert [place for place, _, _ in refuse(cores)] == missing
    assert [place for place, _, _ in refuse({"cpu": {}})] == missing
    vo = options(
        "WallTime: {default: 60}, Architecture: {default: x86_64}, CPULevel: {default: x86-64-v2},"
        " System: {default: BSD}"
    )
    read = parse_description({"executable": "x", "requirements": cores}, vo)
    asked = derive(read, vo)
    assert (asked.gpus_max, asked.architecture, asked.wall_time, asked.cpu_time) == (0, "x86_64", 60, 0)
    assert asked.system == "BSD"
    assert stored_body(read) == {"Executable": "x", "requirements": cores}


def test_words_that_select_a_section_are_known_in_any_case() -> None:
    cpu = {"architecture": {"name": "X86_64", "level": "x86-64-v3"}}
    gpu = {"vendor": "NVIDIA", "arch": "sm_89", "vram_mb_per_gpu": 9, "count": {"min": 1}}
    written = {"executable": "x", "requirements": {"wall_time": 9, "cpu": cpu, "gpu": gpu}}
    asked = derive(parse_description(written, OPTIONS))
    assert (asked.architecture, asked.cpu_level) == ("x86_64", "x86-64-v3")
    assert (asked.gpu_vendor, asked.gpu_architecture, asked.gpu_memory_mb) == ("nvidia", "sm_89", 9)
    [(place, *_)] = refuse({"wall_time": 9, "cpu": X86, "gpu": {"vendor": "Nvidia", "count": {"min": 1}}})[:1]
    assert place == "requirements/gpu/arch"
    jdl_of_it = 'Executable = "x"; WallTime = 9; Architecture = "X86_64"; CPULevel = "x86-64-v3";'
    assert derive(parse(jdl_of_it)).architecture == "x86_64"


def test_a_document_has_a_bounded_depth() -> None:
    deep: object = 1
    for _ in range(5_000):
        deep = {"name": deep}
    [(_, message, _)] = refuse({"cpu": X86, "wall_time": 9, "io": deep})[:1]
    assert message == "is nested too deeply, allowed are 20 levels"


def test_a_keyword_of_the_vo_with_a_name_of_the_specification_changes_no_default() -> None:
    vo = options("Extra: [Architecture], CPUTime: {default: 500}")
    read = parse_description({"Executable": "x", "Architecture": "old"}, vo)
    body = stored_body(read)
    assert body["Architecture"] == "old"
    assert vo.job_description.list_defaults(body)["CPUTime"] == 500
    assert "CPUTime" in vo.job_description.list_defaults_json(json.dumps(body))
    assert derive(read, vo) == derive(parse_description({"Executable": "x"}, vo), vo)
