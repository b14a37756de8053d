"""What a command line or a file wants of the configuration, as the service takes it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cs_config import differences, edits, inline_values, validate
from cs_config.differences import Difference
from pilotage.cli.failures import WrongUsage
from pilotage.fabric.client import Client
from requirements.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A change, and the version that it starts from."""

    body: Mapping[str, object]  #: `text` with `source`, or `set` and `remove`
    version: int
    changed: bool  #: whether it is another text at all
    differences: tuple[Difference, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether it is a whole text, which only operators may send."""
        return "text" in self.body


def of_file(client: Client, file: Path) -> Wanted:
    """A file in place of what is in force, as far as we see that.

    Who is shown a part of the tree sends what is another in that part.

    Raises:
        ConfigError: The file is wrong.
    """
    config = validate.load_file(file)
    answer = client.config()
    found = differences.between(answer["config"], config.tree)
    version = int(answer["version"])
    if (text := answer.get("text")) is not None:
        whole = {"text": config.source, "source": file.name}
        return Wanted(body=whole, version=version, changed=text != config.source, differences=found)
    values, removed = edits.of_differences(found)
    body = {"set": values, "remove": removed}
    return Wanted(body=body, version=version, changed=bool(found), differences=found)


def of_words(client: Client, words: Sequence[str], removed: Sequence[str]) -> Wanted:
    """Edits that are written `PATH=VALUE`, and paths to be removed.

    Raises:
        WrongUsage: There is nothing to do, or a word is none.
    """
    if not words and not removed:
        raise WrongUsage("say PATH=VALUE, or --remove PATH")
    body = {"set": dict(map(_edit, words)), "remove": list(removed)}
    return Wanted(body=body, version=int(client.config()["version"]), changed=True)


def _edit(word: str) -> tuple[str, object]:
    path, equals, written = word.partition("=")
    if not path.strip() or not equals:
        raise WrongUsage(f"{word!r}: write PATH=VALUE, as Resources/Sites/LCG.CERN.ch/MaxRAM=8000")
    return path.strip(), value(written, path.strip())


def value(written: str, path: str) -> object:
    """What is written as it would be in the file: `8000`, `[el8, el9]`, `{Policy: level0}`, `null`.

    Raises:
        WrongUsage: It is not one value.
    """
    try:
        return inline_values.read(written, path)
    except InvalidRequest as error:
        raise WrongUsage(str(error)) from error


def changes(found: Iterable[Difference]) -> list[dict[str, object]]:
    """Differences as the service answers them."""
    return [each.as_json() for each in found]
