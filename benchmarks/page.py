"""The tables and plots of `docs/developer/benchmarks.md`, from what the benchmarks wrote last."""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import plots, results, targets
from benchmarks.results import Kept
from benchmarks.targets import TARGETS

PAGE = Path("docs/developer/benchmarks.md")
_PART = re.compile(r"(<!-- bench: (\S+) -->\n).*?(<!-- bench end -->)", re.DOTALL)


def rewrite(benchmarks: Sequence[str]) -> None:
    """Put the last results of these into the page, and their plots beside it."""
    kept = [found for name in benchmarks if (found := results.load(name)) is not None]
    drawn = plots.draw(point for each in kept for result in each.results for point in result.points)
    directory = PAGE.with_suffix("")
    directory.mkdir(exist_ok=True)
    for path in drawn:
        shutil.copyfile(path, directory / path.name)
    PAGE.write_text(filled(PAGE.read_text(), parts(kept)))


def filled(page: str, contents: Mapping[str, str]) -> str:
    """The page with these contents between its marks; a mark without content keeps what it has."""

    def part(found: re.Match[str]) -> str:
        content = contents.get(found[2])
        return found[0] if content is None else f"{found[1]}{content}\n{found[3]}"

    return _PART.sub(part, page)


def parts(kept: Sequence[Kept]) -> dict[str, str]:
    """What stands at each mark: `targets`, `machine`, and the table of each benchmark."""
    found = {each.name: "\n".join(_shown(each)) for each in kept}
    measured = [result for each in kept for result in each.results]
    judged = targets.verdicts(measured, [target.benchmark for target in TARGETS.values()])
    return found | {
        "targets": markdown([verdict.row() for verdict in judged]),
        "machine": "\n".join(_machines(kept)),
    }


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """A table in Markdown; what is no number is aligned to the left."""
    columns = results.columns(rows)
    lines = [columns, ["---" if column == "what" else "--:" for column in columns], *results.rows(rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(kept: Kept) -> Iterator[str]:
    """The plots of a benchmark and its table."""
    for name in dict.fromkeys(point.plot for result in kept.results for point in result.points):
        yield f"![{plots.PLOTS[name].title}]({PAGE.stem}/{name}.svg)\n"
    yield markdown([result.values for result in kept.results])


def _machines(kept: Sequence[Kept]) -> Iterator[str]:
    said: dict[str, list[str]] = {}
    for each in kept:
        about = each.about
        how = "`--quick`" if about["quick"] else "in full"
        text = f"{about['machine']}, Python {about['python']}, commit {about['commit']}"
        said.setdefault(text, []).append(f"{each.name} ({how}, {about['seconds']} s)")
    for text, names in said.items():
        yield f"- {', '.join(names)}: {text}"
