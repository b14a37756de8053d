"""Other values in a stored description: keywords, parts of its Requirements, and what is said of them."""

import json

import pytest

from cs_config import validate
from cs_config.options import keywords
from cs_config.options.operations import options_for
from optimizers.description import changes
from optimizers.description.description import parse_description
from requirements.errors import InvalidJob

OPTIONS = options_for(
    validate.parse("Operations: {Defaults: {JobDescription: {Extra: [Pilot]}}}", "c.yaml", 1), "cms"
)
REQUIRED = {"Memory": 4000, "OS": "el9"}
BODY = {"Executable": "a.sh", "CPUTime": 3600, "Requirements": REQUIRED}


def required(asked: object, **more: object) -> dict[str, object]:
    return {**more, "Requirements": asked}


@pytest.mark.parametrize(
    ("before", "wanted", "after", "note"),
    [
        (required({"MaxRAM": 9000}), {"maxram": 4000}, required({"maxram": 4000}), "maxram 9000 → 4000"),
        (
            required("other.MaxRAM >= 9000"),
            {"MaxRAM": 4000},
            required("other.MaxRAM >= 4000"),
            "Requirements other.MaxRAM >= 9000 → other.MaxRAM >= 4000",
        ),
        (
            required({"MaxRAM": 9000}, MaxRAM=8000),
            {"MaxRAM": 4000},
            required({"MaxRAM": 9000}, MaxRAM=4000),
            "MaxRAM 8000 → 4000",
        ),
        (
            required({"MaxRAM": 9000}, MaxRAM=8000),
            {"requirements.MaxRAM": 4000},
            required({"MaxRAM": 4000}, MaxRAM=8000),
            "MaxRAM 9000 → 4000",
        ),
        (required({"MaxRAM": 9000}), {"MaxRAM": None}, {}, "MaxRAM 9000 → none"),
        ({}, {"Requirements.MaxRAM": 1}, required({"MaxRAM": 1}), "MaxRAM none → 1"),
        ({}, {"MaxRAM": 1}, {"MaxRAM": 1}, "MaxRAM none → 1"),
    ],
)
def test_a_keyword_that_only_the_requirements_state_is_changed_there(
    before: dict[str, object], wanted: dict[str, object], after: dict[str, object], note: str
) -> None:
    found = changes.change_body(before, wanted, OPTIONS)
    assert (found.body, found.note) == (after, note)


RAM = {"request": {"overhead": 1000, "per_core": 500}, "limit": {"overhead": 1200, "per_core": 500}}
DOCUMENT = {
    "Executable": "a.sh",
    "requirements": {
        "wall_time": 60,
        "cpu": {
            "num_cores": {"min": 1, "max": 8},
            "ram_mb": RAM,
            "architecture": {"name": "aarch64", "profile": "armv8.0-a"},
        },
    },
    "banned_sites": ["A"],
}


@pytest.mark.parametrize(
    ("wanted", "note"),
    [
        ({"walltime": 120}, "requirements/wall_time 60 → 120"),
        (
            {"CPULevel": "armv8.1-a"},
            "requirements/cpu/architecture/profile armv8.0-a → armv8.1-a",
        ),
        ({"MaxNumberOfProcessors": None}, "requirements/cpu/num_cores/max 8 → none"),
        ({"BannedSites": ["A", "B"]}, "banned_sites A → A, B"),
        ({"BannedSites": None}, "banned_sites A → none"),
        ({"MinScratch": 100}, "MinScratch none → 100"),
        (
            {"MinRAM": 1500},
            (
                "requirements/cpu/ram_mb/request/overhead 1000 → 1500,"
                " requirements/cpu/ram_mb/limit/overhead 1200 → 1800"
            ),
        ),
        ({"MinRAMPerCore": 400}, "requirements/cpu/ram_mb/request/per_core 500 → 400"),
    ],
)
def test_what_a_document_states_is_changed_in_it(wanted: dict[str, object], note: str) -> None:
    before = json.dumps(DOCUMENT)
    found = changes.change_body(DOCUMENT, wanted, OPTIONS)
    assert found.note == note
    assert json.dumps(DOCUMENT) == before
    [name] = wanted
    keyword = keywords.find_keyword(name)
    assert keyword is not None
    read = parse_description(found.body, OPTIONS)
    assert read.states(keyword.attribute) == (wanted[name] is not None)
    if wanted[name] is not None:
        assert getattr(read, keyword.attribute) == keyword.read(wanted[name])
    assert changes.change_body(found.body, wanted, OPTIONS).note == ""


GPUS = {
    "count": {"min": 1, "max": 2},
    "vendor": "nvidia",
    "arch": "sm_80",
    "vram_mb_per_gpu": 8000,
    "min_runtime_version": "12.4",
}
X86, ARM = {"name": "x86_64", "level": "x86-64-v3"}, {"name": "aarch64", "profile": "armv8.0-a"}
NO_GPUS = dict.fromkeys(("GPUs", "MaxGPUs", "GPUVendor", "GPUArchitecture", "GPUMemory", "GPURuntime"))
ON_ARM = {"CPULevel": "armv8.0-a", "Architecture": "aarch64"}


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        (
            {"wall_time": 60, "cpu": {"architecture": X86}, "gpu": GPUS},
            NO_GPUS,
            {"wall_time": 60, "cpu": {"architecture": X86}},
        ),
        (  # a document has a section
            {"wall_time": 60, "gpu": GPUS},
            {**NO_GPUS, "TagExpression": "arch:ppc64le"},
            {"wall_time": 60, "cpu": {}},
        ),
        (
            {"wall_time": 60, "cpu": {"architecture": X86}},
            ON_ARM,
            {"wall_time": 60, "cpu": {"architecture": ARM}},
        ),
        (
            {"wall_time": 60, "cpu": {"architecture": ARM}},
            {"Architecture": "x86_64", "CPULevel": "x86-64-v3"},
            {"wall_time": 60, "cpu": {"architecture": X86}},
        ),
    ],
)
def test_a_document_may_become_any_valid_one_in_one_edit(
    before: dict[str, object], wanted: dict[str, object], after: dict[str, object]
) -> None:
    body = {"Executable": "a.sh", "requirements": before}
    if "cpu" not in before:
        body["TagExpression"] = "arch:ppc64le"
    found = changes.change_body(body, wanted, OPTIONS)
    assert found.body["requirements"] == after
    read = parse_description(found.body, OPTIONS)
    assert read.document is not None
    assert changes.change_body(found.body, wanted, OPTIONS).note == ""


def test_the_note_names_the_fields_of_both_architectures() -> None:
    body = {"Executable": "a.sh", "requirements": {"wall_time": 60, "cpu": {"architecture": X86}}}
    assert changes.change_body(body, ON_ARM, OPTIONS).note == (
        "requirements/cpu/architecture/name x86_64 → aarch64,"
        " requirements/cpu/architecture/level x86-64-v3 → none,"
        " requirements/cpu/architecture/profile none → armv8.0-a"
    )


@pytest.mark.parametrize("name", ["Memory", "Requirements.Memory"])
def test_requirements_stand_beside_a_document(name: str) -> None:
    found = changes.change_body(DOCUMENT, {name: 4000}, OPTIONS)
    assert found.body == {**DOCUMENT, "Requirements": {"Memory": 4000}}


@pytest.mark.parametrize("most", [1.7e308, 10**400])
def test_a_limit_beyond_all_numbers_of_before_does_not_grow(most: float) -> None:
    ram = {"request": {"overhead": 10, "per_core": 5}, "limit": {"overhead": most, "per_core": 5}}
    body = {"Executable": "a.sh", "requirements": {"wall_time": 60, "cpu": {"ram_mb": ram}}}
    found = changes.change_body(body, {"MinRAM": 30}, OPTIONS)
    assert found.note == "requirements/cpu/ram_mb/request/overhead 10 → 30"


def test_a_limit_grows_from_nothing_requested_as_well() -> None:
    ram = {"request": {"overhead": 0, "per_core": 5}, "limit": {"overhead": 100, "per_core": 5}}
    body = {"Executable": "a.sh", "requirements": {"wall_time": 60, "cpu": {"ram_mb": ram}}}
    found = changes.change_body(body, {"MinRAM": 300}, OPTIONS)
    assert found.note.endswith("limit/overhead 100 → 300")
    within = changes.change_body(body, {"MinRAM": 50}, OPTIONS)
    assert within.note == "requirements/cpu/ram_mb/request/overhead 0 → 50"


@pytest.mark.parametrize(
    ("default", "beside", "overhead", "per_core"),
    [
        (2000, {}, 5000, 200),  # a part without a request grows as the other one
        (2000, {"MinRAM": 1000}, 10_000, 400),
        (2000, {"MinRAM": 1000, "MinRAMPerCore": 3}, 10_000, 100),
        (0, {}, 4000, 100),
        (2000, {"MinRAMPerCore": 3}, 4000, 100),
    ],
)
def test_a_limit_grows_with_a_request_wherever_that_is(
    default: int, beside: dict[str, object], overhead: int, per_core: int
) -> None:
    options = options_for(
        validate.parse(
            f"Operations: {{Defaults: {{JobDescription: {{MinRAM: {{default: {default}}}}}}}}}", "c.yaml", 1
        ),
        "cms",
    )
    limit = {"limit": {"overhead": 2500, "per_core": 100}}
    body = {"Executable": "a.sh", "requirements": {"wall_time": 60, "cpu": {"ram_mb": limit}}, **beside}
    found = changes.change_body(body, {"MinRAM": 4000}, options)
    assert found.body["MinRAM"] == 4000
    asked = found.body["requirements"]
    assert isinstance(asked, dict)
    assert asked["cpu"]["ram_mb"]["limit"] == {"overhead": overhead, "per_core": per_core}
    assert f", requirements/cpu/ram_mb/limit/overhead 2500 → {overhead}" in found.note


@pytest.mark.parametrize(
    ("wanted", "body", "note"),
    [
        ({"cputime": "7200"}, BODY | {"CPUTime": 7200}, "CPUTime 3600 → 7200"),
        ({"CPUTime": None}, {k: v for k, v in BODY.items() if k != "CPUTime"}, "CPUTime 3600 → none"),
        (
            {"memory": 6000},
            BODY | {"Requirements": {"OS": "el9", "memory": 6000}},
            "memory 4000 → 6000",
        ),
        ({"CPUModel": "x"}, BODY | {"Requirements": {**REQUIRED, "CPUModel": "x"}}, "CPUModel none → x"),
        ({"OS": None}, BODY | {"Requirements": {"Memory": 4000}}, "OS el9 → none"),
        ({"Site": "A.B.ch, C.D.ch"}, BODY | {"Site": ["A.B.ch", "C.D.ch"]}, "Site none → A.B.ch, C.D.ch"),
        ({"pilot": 3}, BODY | {"Pilot": 3}, "Pilot none → 3"),
        ({"CPUTime": 3600}, BODY, ""),
        (
            {"Requirements": "other.Memory > 1"},
            BODY | {"Requirements": "other.Memory > 1"},
            "Requirements {'Memory': 4000, 'OS': 'el9'} → other.Memory > 1",
        ),
    ],
)
def test_keywords_and_parts_of_requirements_get_other_values(
    wanted: dict[str, object], body: dict[str, object], note: str
) -> None:
    found = changes.change_body(BODY, wanted, OPTIONS)
    assert (found.body, found.note) == (body, note)


def test_a_name_is_compared_once_for_many_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(keywords, "did_you_mean", lambda word, _: compared.append(word))
    for _ in range(100):
        changes.change_body(BODY, {"Zebra": 1}, OPTIONS)
    assert compared == ["Zebra", "Zebra"]  # in the Requirements, and among keywords


def test_the_note_of_long_values_is_short() -> None:
    long = {"Arguments": "x" * 1_000_000, "OutputSandbox": ["y" * 100] * 1_000}
    found = changes.change_body(BODY, long, OPTIONS)
    assert found.body == BODY | long
    assert found.note == f"Arguments none → {'x' * 200}…, OutputSandbox none → {'y' * 100}, {'y' * 98}…"
    names = "Alpha Bravo Delta Gamma Jukebox Kilo Mike Quebec Sierra Xray Whisky"
    many = changes.change_body(BODY, dict.fromkeys(names.split(), "z" * 300), OPTIONS)
    assert len(many.note) == 2_001


@pytest.mark.parametrize(
    ("text", "wanted", "new"),
    [
        (
            'other.Memory >= 4000 && other.OS == "el9"',
            {"Memory": 6000},
            'other.Memory >= 6000 && other.OS == "el9"',
        ),
        ('other.OS == "el9"', {"Memory": 6000}, '(other.OS == "el9") && other.Memory >= 6000'),
        ("other.Memory > 1", {"OS": "el8"}, '(other.Memory > 1) && other.OS == "el8"'),
    ],
)
def test_an_expression_keeps_all_else(text: str, wanted: dict[str, object], new: str) -> None:
    assert changes.change_body({"Requirements": text}, wanted, OPTIONS).body == {"Requirements": new}


@pytest.mark.parametrize(
    ("body", "wanted", "message"),
    [
        (BODY, {"Owner": "eve"}, "Owner: is not changed: a job keeps its owner"),
        (BODY, {"InputSandbox": "x"}, "InputSandbox: is not changed: a job keeps its input files"),
        (BODY, {"Memroy": 3}, "Memroy: is no keyword, and is not in the Requirements"),
        ({"Requirements": "other.Memory > 1"}, {"Memroy": 3}, "did you mean Memory?"),
        (BODY, {"CPUTme": 3}, "did you mean CPUTime?"),
        (BODY, {"CPUTime": "long"}, 'CPUTime: "long", allowed is a whole number'),
        (
            {"Requirements": "other.Memory > 1 || other.Memory < 9"},
            {"Memory": 6000},
            "Memory: the expression in Requirements compares Memory 2 times: state a new",
        ),
        (
            {"Requirements": "other.OS == 1"},
            {"OS": None},
            "OS: the expression in Requirements is not shortened",
        ),
    ],
)
def test_what_cannot_be_changed_is_refused_with_the_reason(
    body: dict[str, object], wanted: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidJob) as refused:
        changes.change_body(body, wanted, OPTIONS)
    assert message in str(refused.value)
