import pytest

from pilotage.fabric.batch.dialect import dialect, options


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["--mem=300M", "--mem=4000M"], ["--mem=4000M"]),
        (["--mem=300M", "--time=10", "--mem=100M"], ["--mem=300M", "--time=10"]),
        (["--time=10", "--time=1-00:00:00"], ["--time=1-00:00:00"]),
        (["--mem=300M", "--mem=1G"], ["--mem=1G"]),
        (["--mem=64G", "--mem=4000M"], ["--mem=64G"]),
        (["--mem=64g", "--mem=65000"], ["--mem=64g"]),
        (["--time=2-00:00:00", "--time=60"], ["--time=2-00:00:00"]),
        (["--time=2:00:00", "--time=121:00"], ["--time=121:00"]),
        (["--time=1-0", "--time=1439"], ["--time=1-0"]),
        (["--mem=8000M", "--mem=0"], ["--mem=0"]),  # all memory of the node
        (["--time=60", "-t", "0"], ["--time=0"]),  # no limit
        (["--tmp=60", "--tmp=0"], ["--tmp=60"]),
        (["--gres=gpu:2", "--gres=gpu:1,ssd:100"], ["--gres=gpu:2,ssd:100"]),
        (["--gres=gpu", "--gres=ssd", "--gres=gpu:a100"], ["--gres=ssd:1,gpu:a100:1"]),
        (["--gres=gpu:2", "--gres=gpu:a100:1"], ["--gres=gpu:a100:2"]),
        (["--gres=gpu:4", "--gres=gpu:a100:2,gpu:l40s:2"], ["--gres=gpu:a100:2,gpu:l40s:2"]),
        (["--gres=gpu:a100:1", "--gres=gpu:a100:2"], ["--gres=gpu:a100:2"]),
        (["--constraint=el9", "--constraint=el9"], ["--constraint=el9"]),
        (["--constraint=p3|p4", "--constraint=(a|b)&ssd"], ["--constraint=(p3|p4)&(a|b)&ssd"]),
        (["-A", "grid", "-A", "grid"], ["-A", "grid", "-A", "grid"]),
        (["--qos=low", "--qos=high"], ["--qos=low", "--qos=high"]),
        (["--time=60", "-t", "2880"], ["--time=2880"]),
        (["--time=60", "-t30", "--time", "1-0"], ["--time=1-0"]),
        (["--constraint=el9", "-C", "ssd"], ["--constraint=el9&ssd"]),
        (["--cpus-per-task=4", "--ntasks=1", "-c", "1"], ["--cpus-per-task=4", "--ntasks=1"]),
        (["--cpus-per-task=4", "-n2", "--cpus-per-task=8"], ["--cpus-per-task=8", "--ntasks=2"]),
        (["--time=60", "--tim=5"], ["--time=60"]),
        (["--cpus-per-task=4", "--cpus-per-t", "8"], ["--cpus-per-task=8"]),
        (["--constraint=el9", "--const=ssd"], ["--constraint=el9&ssd"]),
        (["--mem=300M", "--me=100M"], ["--mem=300M"]),
        (
            ["--mem=300M", "--mem-per-cpu=100M", "--time-min=5"],
            ["--mem=300M", "--mem-per-cpu=100M", "--time-min=5"],
        ),
        (["--time=60", "--t=5"], ["--time=60", "--t=5"]),  # ambiguous: sbatch refuses it
    ],
)
def test_of_what_is_asked_twice_slurm_gets_both(given: list[str], taken: list[str]) -> None:
    submit = dialect.shipped_dialect("slurm").submit
    assert options.merge_options(given, submit.merged, submit.short) == taken
