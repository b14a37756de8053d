"""Arguments of one option put into one, for commands that take only the last of them."""

from collections.abc import Sequence

from pilotage.fabric.batch.dialect import Joined


def join(words: Sequence[str], joined: Joined) -> list[str]:
    """The words with the option once, at the place of its last argument.

    Of `-l nodes=1:ppn=4 -l mem=2gb -l nodes=1:ssd` comes `-l nodes=1:ppn=4:ssd,mem=2gb` where the parts of
    `nodes` add up.
    """
    rest, arguments = _taken(words, joined.option)
    values: dict[str, str] = {}
    for item in (item for argument in arguments for item in argument.split(joined.between)):
        name, sign, value = item.partition("=")
        before = values.get(name)
        if before is not None and (between := joined.parts.get(name)) is not None:
            value = _added(before.removeprefix("="), value, between)
        values[name] = sign + value
    if not values:
        return rest
    return [*rest, joined.option, joined.between.join(name + value for name, value in values.items())]


def _taken(words: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    rest: list[str] = []
    arguments: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == option:
            arguments += [next(remaining, "")]
        else:
            rest.append(word)
    return rest, arguments


def _added(before: str, value: str, between: str) -> str:
    parts = before.split(between)
    return between.join([*parts, *(part for part in value.split(between) if part not in parts)])
