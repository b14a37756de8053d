"""Small models of what submit commands mean: which nodes a batch system would take for given flags."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import classad2

from requirements.values import Value, as_number, fold

_COMPARE: dict[str, Callable[[Fraction, Fraction], bool]] = {
    ">=": lambda has, asked: has >= asked,
    "<=": lambda has, asked: has <= asked,
    ">": lambda has, asked: has > asked,
    "<": lambda has, asked: has < asked,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNode:
    """A node as its batch system knows it, in the words of its language."""

    numbers: Mapping[str, Fraction] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    features: frozenset[str] = frozenset()

    def has(self, word: str, operator: str, asked: str) -> bool:
        return word in self.numbers and _COMPARE[operator](self.numbers[word], Fraction(asked))


def number(fact: Value | None, factor: Fraction = Fraction(1)) -> Fraction | None:
    """The number that a fact is to a batch system."""
    plain = as_number(fact) if isinstance(fact, str) else fact
    return Fraction(plain) * factor if isinstance(plain, int | float) else None


def has_value(fact: Value | None, wanted: str | float) -> bool:
    """Whether a node with this fact has the feature that stands for a value."""
    if isinstance(fact, tuple):
        return any(has_value(item, wanted) for item in fact)
    if isinstance(wanted, bool):
        return isinstance(fact, int | float) and bool(fact) is wanted
    if isinstance(wanted, str):
        return isinstance(fact, str) and fold(fact) == fold(wanted)
    return isinstance(fact, int | float) and fact == wanted


def slurm(flags: Sequence[str], node: BatchNode) -> bool:
    return all(_slurm(flag, node) for flag in flags)


def _slurm(flag: str, node: BatchNode) -> bool:
    option, _, value = flag.partition("=")
    if option == "--constraint":
        inside = re.sub(r"\([^()&]*\)", "", value)
        assert not ("&" in inside and "|" in inside), "& and | need parentheses"
        text = re.sub(r"[A-Za-z0-9_.-]+", lambda word: str(word[0] in node.features), value)
        return bool(eval(text.replace("&", " and ").replace("|", " or ")))  # noqa: S307  # True, False, and, or
    if option == "--gres":
        return all(node.has(*_gres(item)) for item in value.split(","))
    return node.has(option.removeprefix("--"), ">=", value.removesuffix("M"))


def _gres(item: str) -> tuple[str, str, str]:
    word, _, count = item.partition(":")
    return word, ">=", count


def grid_engine(flags: Sequence[str], node: BatchNode) -> bool:
    assert list(flags[::2]) == ["-l"] * (len(flags) // 2)
    return all(_complex(item, node) for listed in flags[1::2] for item in listed.split(","))


def _complex(item: str, node: BatchNode) -> bool:
    word, _, value = item.partition("=")
    if value == "TRUE":
        return word in node.features
    if re.fullmatch(r"[0-9.]+M?", value):
        return node.has(word, ">=", value.removesuffix("M"))
    return word in node.texts and fold(node.texts[word]) in {fold(each) for each in value.split("|")}


def pbs(flags: Sequence[str], node: BatchNode) -> bool:
    assert list(flags[::2]) == ["-l"] * (len(flags) // 2)
    listed = [each for each in flags[1::2] if not each.startswith("nodes=")]
    chunks = [each.removeprefix("nodes=1:") for each in flags[1::2] if each.startswith("nodes=")]
    assert len(chunks) < 2, "of two -l nodes= one wins"
    bounds = [item.partition("=") for each in listed for item in each.split(",")]
    return all(node.has(word, ">=", value.removesuffix("mb")) for word, _, value in bounds) and all(
        feature in node.features for chunk in chunks for feature in chunk.split(":")
    )


_LSF_TERM = re.compile(r"(!?)([A-Za-z_][A-Za-z0-9_]*)(?:(>=|<=|==|!=|>|<)([A-Za-z0-9_.]+))?")


def lsf(flags: Sequence[str], node: BatchNode) -> bool:
    if not flags:
        return True
    option, select = flags
    assert option == "-R"
    expression = select.removeprefix("select[").removesuffix("]")
    text = _LSF_TERM.sub(lambda term: str(_lsf_term(term, node)), expression)
    return bool(eval(text.replace("&&", " and ").replace("||", " or ")))  # noqa: S307  # True, False, and, or


def _lsf_term(term: re.Match[str], node: BatchNode) -> bool:
    negated, word, operator, value = term.groups()
    if operator is None:
        return (word in node.features) is not bool(negated)
    if operator in ("==", "!="):
        same = fold(node.texts.get(word, "")) == fold(value)
        return word in node.texts and same is (operator == "==")
    return node.has(word, operator, value)


def htcondor(flags: Sequence[str], node: BatchNode) -> bool:
    if not flags:
        return True
    option, line = flags
    assert option == "-append"
    machine = classad2.ClassAd()
    for word, value in node.numbers.items():
        machine[word] = int(value) if value.denominator == 1 else float(value)
    for word, text in node.texts.items():
        machine[word] = text
    for feature in node.features:
        machine[feature] = True
    tree = classad2.ExprTree(line.removeprefix("requirements = "))
    return tree.eval(scope=classad2.ClassAd(), target=machine) is True


LANGUAGES: Mapping[str, Callable[[Sequence[str], BatchNode], bool]] = {
    "Slurm": slurm,
    "GridEngine": grid_engine,
    "PBS": pbs,
    "LSF": lsf,
    "HTCondor": htcondor,
}
