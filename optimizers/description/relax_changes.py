"""What rules of relaxation make of a description: its next step, and the rules that are left."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cs_config.options import relax_rules
from cs_config.options.options import VoOptions
from cs_config.options.relax_rules import RELAX, RelaxRule
from optimizers.description import changes
from optimizers.description.value_changes import StatedValues
from requirements.errors import InvalidJob, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxStep:
    """What a job gives up at once."""

    values: Mapping[str, object]  #: for `changes.change_body`; with the rules that are left
    note: str  #: the times of the rules, and what is changed


def find_step(body: Mapping[str, object], options: VoOptions, *, waited: float) -> RelaxStep | None:
    """What a job gives up after it waited so many seconds; None: nothing that it has.

    What a rule names and the description has not, as it may be with the rules of a VO, is passed over.
    """
    rules = options.job_description.list_relax_rules(body)
    due = [rule for rule in rules if rule.after <= waited]
    stated = StatedValues(body=body, options=options)
    for rule in due:
        list(_apply(rule, stated))
    given_up = dict(stated.changed)
    changed = changes.change_body(body, given_up, options).note if given_up else ""
    if not changed:
        return None
    left = [rule.text for rule in rules[len(due) :] if not list(_apply(rule, stated))]
    times = ", ".join(dict.fromkeys(rule.text.partition(":")[0].strip() for rule in due))
    return RelaxStep(values=given_up | {RELAX: left}, note=f"{times}: {changed}")


def find_unfit_rules(
    body: Mapping[str, object], texts: Sequence[str], options: VoOptions
) -> Iterator[Problem]:
    """The problems of rules whose changes the description cannot have, each after those before it."""
    stated = StatedValues(body=body, options=options)
    for rule in relax_rules.parse_rules(texts):
        yield from (replace(each, path=f"{RELAX}/{each.path}") for each in _apply(rule, stated))


def _apply(rule: RelaxRule, stated: StatedValues) -> Iterator[Problem]:
    """Change the values that a rule names; yields the problems of those that stay as they are."""
    for change in rule.values:
        before = dict(stated.changed)
        problem = stated.change(change)
        if problem is not None:
            yield problem
            continue
        new = {name: value for name, value in stated.changed.items() if before.get(name, ...) != value}
        try:  # each alone: no other expression is parsed for each of them
            changes.change_body(stated.body, new, stated.options)
        except InvalidJob as error:
            stated.changed = before
            yield from error.problems
