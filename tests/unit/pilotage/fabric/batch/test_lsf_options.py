"""Options of `bsub` that are set by a slot and by flags: as IBM describes them for LSF 10.1."""

import pytest

from pilotage.fabric.batch.dialect import dialect, options

OURS = "rusage[mem=4001MB] span[hosts=1]"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["-n", "4", "-n", "8"], ["-n", "8"]),
        (["-n", "8", "-x", "-n", "4"], ["-n", "8", "-x"]),
        (["-n", "4", "-n", "4,8"], ["-n", "4,8"]),
        (["-n", "4", "-network", "type=sn_all"], ["-n", "4", "-network", "type=sn_all"]),
        (["-M", "4001MB", "-M", "8GB"], ["-M", "8GB"]),
        (["-M", "4001MB", "-M", "1GB"], ["-M", "4001MB"]),
        (["-M", "4001MB", "-M", "8000000"], ["-M", "8000000"]),  # kB, or what the cluster says
        (["-W", "90", "-W", "1:00"], ["-W", "90"]),
        (["-W", "61", "-W", "2:00"], ["-W", "2:00"]),
        (["-W", "61", "-W", "60/host7"], ["-W", "60/host7"]),
        (["-Wep", "10", "-We", "5", "-W", "61"], ["-Wep", "10", "-We", "5", "-W", "61"]),
        (
            ["-gpu", "num=2", "-gpu", "num=1:gmodel=A100:j_exclusive=yes"],
            ["-gpu", "num=2:gmodel=A100:j_exclusive=yes"],
        ),
        (["-gpu", "num=2", "-gpu", "-"], ["-gpu", "num=2"]),
        (["-gpu", "-", "-gpu", "num=2"], ["-gpu", "num=2"]),
    ],
)
def test_of_what_is_asked_twice_lsf_gets_the_larger(given: list[str], taken: list[str]) -> None:
    submit = dialect.shipped_dialect("lsf").submit
    assert options.merge_options(given, submit.merged, submit.short) == taken


@pytest.mark.parametrize(
    ("flags", "requirement"),
    [
        (["select[ssd]"], f"select[ssd] {OURS}"),
        (["ssd && mem>8000"], f"select[ssd && mem>8000] {OURS}"),
        (["select[a || b]", "select[c]"], f"select[(a || b) && (c)] {OURS}"),
        (["select[a]", "select[a]"], f"select[a] {OURS}"),
        (["order[r15m]", "order[ut]"], f"order[r15m:ut] {OURS}"),
        (["rusage[mem=8GB]"], "rusage[mem=8GB] span[hosts=1]"),
        (["rusage[mem=1GB:tmp=50]"], "rusage[mem=4001MB:tmp=50] span[hosts=1]"),
        (["rusage[lic=1, tmp=50]"], None),  # with a blank: stands as it is
        (["rusage[mem=20:duration=30:decay=1]"], "rusage[mem=20:duration=30:decay=1] span[hosts=1]"),
        (["rusage[lic=1:duration=2]"], "rusage[mem=4001MB, lic=1:duration=2] span[hosts=1]"),
        (["rusage[a15=1||a20=1]"], "rusage[mem=4001MB, a15=1||a20=1] span[hosts=1]"),
        (["rusage[mem=8GB/host]"], "rusage[mem=8GB/host] span[hosts=1]"),
        (["span[ptile=4]"], "rusage[mem=4001MB] span[ptile=4]"),
        (["same[model]", "same[type:model]"], f"{OURS} same[model:type]"),
        (["affinity[core(2)]"], f"{OURS} affinity[core(2)]"),
        (["1*{select[gpu]} + 3*{select[!gpu]}"], "1*{select[gpu]} + 3*{select[!gpu]}"),
        (["{select[a]} || {select[b]}", "select[c]"], "{select[a]} || {select[b]}"),
    ],
)
def test_requirements_of_lsf_become_one_with_each_section_once(
    flags: list[str], requirement: str | None
) -> None:
    submit = dialect.shipped_dialect("lsf").submit
    asked = [*submit.cores, *submit.memory, *(word for flag in flags for word in ("-R", flag))]
    words = [word.format(cores=4, memory=4001) if "{c" in word or "{m" in word else word for word in asked]

    expected = "rusage[mem=4001MB, lic=1, tmp=50] span[hosts=1]" if requirement is None else requirement
    assert options.merge_options(words, submit.merged, submit.short) == [
        "-n", "4", "-R", expected, "-M", "4001MB",
    ]  # fmt: skip
