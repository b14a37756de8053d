"""What a batch system is asked for a pilot follows from the class of the jobs that it is sent for."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from matcher.class_flags import NEEDS, find_flags
from matcher.conditions import fits
from matcher.request.match_request import read_resource
from requirements.diracx.cpu_levels import FEATURES
from requirements.nodes.site_mapping import SiteMapping, parse_mapping
from requirements.requirement_class import RequirementClass

DOCUMENT = Path(__file__).parents[3] / "docs" / "site-admin" / "pilots-by-need.md"
KINDS = {"sm_70": "v100", "sm_80": "a100", "sm_89": "l40s", "sm_90": "h100"}
LEVELS = {"x86-64-v2": "v2", "x86-64-v3": "v3", "x86-64-v4": "v4"}
TAGS = {"cvmfs:lhcb": "cvmfs", "os:el9": "el9", "ssd": "ssd"}


def mapped(vocabulary: object, **attributes: object) -> SiteMapping:
    return parse_mapping({"Vocabulary": vocabulary, "Attributes": attributes})


def asked(**needs: Any) -> RequirementClass:
    return RequirementClass(vo="lhcb", cpu_time=1, **needs)


SLURM = mapped(
    "Slurm",
    MaxScratch={"min": "tmp", "unit": "MB"},
    Architecture={"features": {"x86_64": "x86", "aarch64": "arm"}},
    CPULevel={"features": LEVELS},
    CPUFlags={"features": {"avx512f": "avx512", "sse4_2": "sse42"}},
    GPUVendor={"features": {"nvidia": "nvidia"}},
    GPUArchitecture={"kinds": KINDS, "features": KINDS},
    GPUMemory={"features": {24_000: "g24", 80_000: "g80"}},
    GPURuntime={"features": {"11.8": "cuda11", "12.4": "cuda12"}},
    Tag={"features": TAGS},
)


@pytest.mark.parametrize(
    ("needs", "flags"),
    [
        ({}, ()),
        ({"scratch_mb": 20_480}, ("--tmp=20480M",)),
        ({"architecture": "aarch64"}, ("--constraint=arm",)),
        ({"cpu_level": "x86-64-v3"}, ("--constraint=v3|v4",)),
        ({"cpu_features": frozenset({"avx512f", "sse4_2"})}, ("--constraint=avx512&sse42",)),
        ({"gpu_vendor": "nvidia"}, ("--constraint=nvidia",)),
        ({"gpu_architecture": "sm_89"}, ("--constraint=h100|l40s",)),
        ({"gpu_architecture": "sm_90"}, ("--gres=gpu:h100:1", "--constraint=h100")),
        ({"gpu_architecture": "sm_120"}, ()),
        ({"gpu_memory_mb": 40_000}, ("--constraint=g80",)),
        ({"gpu_runtime": "12.1"}, ("--constraint=cuda12",)),
        ({"tags": frozenset({"SSD"})}, ("--constraint=ssd",)),
        ({"tag_expression": "cvmfs:lhcb & (os:el9 | os:el8) & ~ssd"}, ("--constraint=cvmfs",)),
        ({"processors_min": 8, "gpus": 2, "min_ram": 9_000}, ()),
    ],
)
def test_slurm_is_asked_for_what_the_jobs_need(needs: dict[str, Any], flags: tuple[str, ...]) -> None:
    assert find_flags(asked(**needs), SLURM) == flags


@pytest.mark.parametrize(
    ("vocabulary", "word", "flags"),
    [
        ("GridEngine", {"min": "scratch", "in": "MB"}, ("-l", "scratch=1500")),
        ("GridEngine", {"min": "scratch", "in": "GB"}, ("-l", "scratch=1")),
        ("PBS", {"min": "file"}, ("-l", "file=1500mb")),
        ("LSF", {"min": "tmp"}, ("-R", "select[tmp>=1500]")),
        ("HTCondor", {"min": "RequestDisk"}, ("-append", "request_disk = 1536000")),
        ("HTCondor", {"min": "Disk"}, ("-append", "requirements = TARGET.Disk >= 1536000")),
        ({"Forms": {"min": ["-disk", "{word}={value}"]}}, {"min": "d", "in": "MB"}, ("-disk", "d=1500")),
    ],
)
def test_each_batch_system_is_asked_for_local_disk_in_its_words(
    vocabulary: object, word: dict[str, str], flags: tuple[str, ...]
) -> None:
    mapping = mapped(vocabulary, MaxScratch={"unit": "MB", **word})
    assert find_flags(asked(scratch_mb=1_500), mapping) == flags


@pytest.mark.parametrize(
    ("vocabulary", "words", "flags"),
    [
        ("Slurm", {"kinds": KINDS}, ("--gres=gpu:h100:1",)),
        ("GridEngine", {"equal": "gpu_kind", "values": KINDS}, ("-l", "gpu_kind=h100")),
        ("PBS", {"features": KINDS}, ("-l", "nodes=1:h100")),
        ("LSF", {"equal": "gpu_model", "values": KINDS}, ("-R", "select[gpu_model==h100]")),
        (
            "HTCondor",
            {"equal": "GPUs_DeviceName", "values": {"sm_90": "NVIDIA H100"}},
            ("-append", 'requirements = TARGET.GPUs_DeviceName == "NVIDIA H100"'),
        ),
        ("ARC", {"features": {"sm_90": "ENV/H100"}}, ("ENV/H100",)),
        ({"Forms": {"kind": ["-gpu", "type={word}"]}}, {"kinds": KINDS}, ("-gpu", "type=h100")),
    ],
)
def test_each_batch_system_is_asked_for_a_kind_of_gpu_in_its_words(
    vocabulary: object, words: dict[str, object], flags: tuple[str, ...]
) -> None:
    needs = asked(gpus=1, gpu_architecture="sm_90")
    assert find_flags(needs, mapped(vocabulary, GPUArchitecture=words)) == flags


def test_what_a_language_cannot_say_is_left_out() -> None:
    kinds = mapped("Slurm", GPUArchitecture={"kinds": KINDS})
    assert find_flags(asked(gpu_architecture="sm_80"), kinds) == (), "one of several kinds"
    texts = mapped("GridEngine", GPUArchitecture={"equal": "kind", "values": KINDS})
    assert find_flags(asked(gpu_architecture="sm_80"), texts) == ("-l", "kind=a100|h100|l40s")


NODES = st.fixed_dictionaries(
    {
        "GPUArchitecture": st.sampled_from(sorted(KINDS)),
        "MaxScratch": st.integers(0, 5_000),
        "level": st.sampled_from(sorted(LEVELS)),
        "Tag": st.frozensets(st.sampled_from(sorted(TAGS))),
    }
)
CLASSES = st.builds(
    asked,
    gpus=st.just(1),
    gpu_architecture=st.sampled_from(["", *KINDS]),
    scratch_mb=st.integers(0, 5_000),
    cpu_level=st.sampled_from(["", *LEVELS]),
    tags=st.frozensets(st.sampled_from(["ssd", "OS:el9"])),
    tag_expression=st.sampled_from(["", "cvmfs:lhcb", "os:el9 | ssd", "cvmfs:lhcb & ~ssd", "~os:el9"]),
)


@given(node=NODES, needs=CLASSES)
def test_no_node_on_which_the_jobs_may_run_is_left_out(node: dict[str, Any], needs: RequirementClass) -> None:
    offered = read_resource(
        {
            **{name: node[name] for name in ("GPUArchitecture", "MaxScratch")},
            "Site": "LCG.A.org",
            "CPUTime": 10,
            "GPUs": 1,
            "Tag": sorted(node["Tag"]),
            "CPUFlag": sorted(FEATURES[node["level"]]),
        }
    ).resource
    has = {KINDS[node["GPUArchitecture"]], LEVELS[node["level"]], *(TAGS[each] for each in node["Tag"])}
    refused = []
    for flag in find_flags(needs, SLURM):
        name, _, value = flag.partition("=")
        if name == "--tmp":
            refused.append(int(value.rstrip("M")) > node["MaxScratch"])
        elif name == "--gres":
            refused.append(value.split(":")[1] not in has)
        else:
            clauses = [re.findall(r"\w+", each) for each in value.split("&")]
            refused.append(not all(has.intersection(each) for each in clauses))
    if fits(replace(needs, gpus_max=None), offered):
        assert not any(refused)


def test_the_document_has_a_row_for_each_need() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for each in NEEDS:
        assert f"| `{each.attribute}` | {each.asks} |" in text


def test_the_examples_of_the_document_are_as_it_says() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    blocks = re.findall(r"\*\*(\w[\w ]*)\*\*: `\w+ ([^`]*)`\n\n```yaml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    needs = asked(gpus=1, gpu_architecture="sm_90", scratch_mb=50_000, cpu_level="x86-64-v3")
    for name, flags, block in blocks:
        mapping = parse_mapping(yaml.safe_load(block)["Forwarding"])
        assert list(find_flags(needs, mapping)) == shlex.split(flags), name
