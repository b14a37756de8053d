"""Options of sbatch that are given twice, made one that says both: of two, Slurm takes the last."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pilotage.fabric.batch.joining import larger


def once(arguments: Iterable[str]) -> list[str]:
    """The arguments, each option that has a meaning for both times it is given at its first place."""
    found: dict[str, str] = {}
    for number, argument in enumerate(arguments):
        option, sign, value = argument.partition("=")
        if not sign or option not in _BOTH:
            found[f"{number}"] = argument
        elif option in found:
            before = found[option].removeprefix(f"{option}=")
            found[option] = f"{option}={_BOTH[option](before, value)}"
        else:
            found[option] = argument
    return list(found.values())


def _all_features(before: str, after: str) -> str:
    return before if before == after else f"{_closed(before)}&{_closed(after)}"


def _closed(expression: str) -> str:
    return f"({expression})" if "|" in expression and "(" not in expression else expression


def _all_items(before: str, after: str) -> str:
    counts: dict[str, str] = {}
    for item in f"{before},{after}".split(","):
        name, _, count = item.rpartition(":")
        if not count.isdecimal():
            name, count = item, "1"
        counts[name] = larger(counts.get(name, count), count)
    return ",".join(f"{name}:{count}" for name, count in counts.items())


_BOTH: Final[Mapping[str, Callable[[str, str], str]]] = {
    **dict.fromkeys(("--mem", "--tmp", "--time", "--mincpus"), larger),
    "--constraint": _all_features,
    "--gres": _all_items,
}
