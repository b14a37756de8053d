"""Reading and checking a whole submission, as far as no database is needed."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter

from cs_config.options import bounds
from cs_config.tree.configuration import Configuration
from optimizers.description import expansion, jdl, parametric, template_cache
from optimizers.description.expansion import SharedDescription
from optimizers.description.parametric import Volume
from optimizers.description.template_cache import DescriptionTemplate, TemplateMatcher
from optimizers.submit.submitter import Submitter, resolve_ownership
from requirements.classad.classad_files import Unevaluated
from requirements.errors import MOST_PROBLEMS, InvalidInput, InvalidJob, NotAllowed, Problem

#: One description: its text, or what a JSON body says.
Source = str | Mapping[str, object]
#: Refuses jobs for which there is no room, given how many there are by VO and owner.
RequireRoom = Callable[[Mapping[tuple[str, str], int]], None]

#: Jobs that are made before it is asked whether there is room for them.
_FEW = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedJobs:
    """Jobs that share a description, ready to be stored."""

    source: str  #: the text that it came in
    path: str  #: where in the submission it stands, for messages
    submitted: SharedDescription
    mould: DescriptionTemplate | None = (
        None  #: with whose body its one member has placeholders; None: with its own
    )


def check_sources(
    config: Configuration,
    submitter: Submitter,
    sources: Sequence[Source],
    *,
    sandbox: str | None = None,
    require_room: RequireRoom | None = None,
) -> list[CheckedJobs]:
    """Read and check everything that needs no database.

    Args:
        config: What to check against.
        submitter: Who sends it.
        sources: Descriptions; what they declare is added up before any of their jobs is made.
        sandbox: Reference of the archive that was sent for all.
        require_room: Is asked whether there is room for what is declared, where that is much.

    Raises:
        InvalidJob: With the problems of the descriptions, each with its index; of very many the first.
        NotAllowed: One is for somebody else.
        QuotaExceeded: There is no room.
    """
    checking = _Checking(config=config, submitter=submitter, sandbox=sandbox)
    texts = checking.read(sources)
    checking.check_volume(texts, require_room)
    checked = checking.expand(texts)
    if checking.problems:
        raise InvalidJob([problem for _, problem in sorted(checking.problems, key=itemgetter(0))])
    if not checked:
        raise InvalidJob([Problem(path="jobs", message="is empty: there is nothing to submit")])
    return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """One source that was read, and perhaps those that are the same."""

    text: str
    cast: list[CheckedJobs] | None  #: the jobs of a text like others
    raws: Sequence[Mapping[str, object]]  #: else the descriptions in it
    volume: Volume


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """Where a text stands in the submission."""

    index: int
    path: str
    text: _Text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checking:
    """Reads the sources of one submission, then makes their jobs; collects what is wrong."""

    config: Configuration
    submitter: Submitter
    sandbox: str | None
    problems: list[tuple[int, Problem]] = field(default_factory=list)  #: with the index of the source

    def read(self, sources: Sequence[Source]) -> list[_Placed]:
        """The sources as far as they can be read; nothing is expanded."""
        known = template_cache.template_cache_of(self.config)
        casting = TemplateMatcher(known, self.submitter, self.sandbox) if len(sources) > 1 else None
        alike: dict[str, _Text] = {}
        found: list[_Placed] = []
        for index, source in enumerate(sources):
            path = f"jobs[{index}]/" if len(sources) > 1 else ""
            text = source if isinstance(source, str) else record_as_text(source)
            with self._collecting(index, path):
                if text not in alike:
                    alike[text] = _read(casting, source, text, path)
                found.append(_Placed(index=index, path=path, text=alike[text]))
            if self.is_full:
                break
        return found

    def check_volume(self, texts: Sequence[_Placed], require_room: RequireRoom | None) -> None:
        """Refuse more jobs, or more text in them, than one submission may make.

        Raises:
            InvalidJob: It is too much for any submission.
            QuotaExceeded: It is too much for the submitter now.
        """
        together = sum((each.text.volume for each in texts), Volume())
        for what, seen, most in (
            ("jobs", together.jobs, bounds.SUBMITTED_JOBS),
            ("characters of one description with its placeholders filled", together.longest, bounds.FILLED),
            ("characters with all placeholders filled", together.characters, bounds.ALL_FILLED),
        ):
            if seen > most:
                message = f"{seen} {what} are too many, allowed in one submission are {most}"
                raise InvalidJob([Problem(path="jobs", message=message)])
        if require_room is not None and together.jobs > _FEW:
            require_room(self._declared(texts))

    def _declared(self, texts: Sequence[_Placed]) -> Counter[tuple[str, str]]:
        """How many jobs parametric descriptions declare, by VO and owner; others are counted when made."""
        declared: Counter[tuple[str, str]] = Counter()
        for raw in (raw for each in texts for raw in each.text.raws if parametric.is_parametric(raw)):
            with suppress(InvalidJob, NotAllowed):  # found again, and told with its place
                whose = resolve_ownership(raw, self.submitter, self.config)
                declared[whose.vo, whose.owner] += parametric.volume(raw).jobs
        return declared

    def expand(self, texts: Sequence[_Placed]) -> list[CheckedJobs]:
        """The jobs of all texts; each text is expanded once.

        Raises:
            NotAllowed: One is for somebody else.
        """
        checked: list[CheckedJobs] = []
        alike: dict[str, list[CheckedJobs]] = {}
        for each in texts:
            if self.is_full:
                break
            text = each.text.text
            try:
                with self._collecting(each.index, each.path):
                    if text not in alike:
                        alike[text] = each.text.cast or list(self._expanded(each))
                    checked += alike[text]
            except NotAllowed as refused:
                raise NotAllowed(f"{each.path}{refused}") from None
        return checked

    def _expanded(self, each: _Placed) -> Iterator[CheckedJobs]:
        """What one source makes; a text may hold several descriptions."""
        for raw in each.text.raws:
            for submitted in expansion.expand_description(raw, self.submitter, self.config, self.sandbox):
                yield CheckedJobs(source=each.text.text, path=each.path, submitted=submitted)

    @property
    def is_full(self) -> bool:
        """Whether so much is wrong that no more is looked for."""
        return len(self.problems) >= MOST_PROBLEMS

    @contextmanager
    def _collecting(self, index: int, path: str) -> Iterator[None]:
        try:
            yield
        except InvalidInput as invalid:
            self.problems.extend(
                (index, replace(each, path=f"{path}{each.path}")) for each in invalid.problems
            )


def _read(casting: TemplateMatcher | None, source: Source, text: str, path: str) -> _Text:
    """One source; a text like others need not be read as a whole."""
    if casting is not None and (found := casting.fill(text)) is not None:
        mould, member = found
        submitted = replace(mould.submitted, members=(member,))
        cast = [CheckedJobs(source=text, path=path, submitted=submitted, mould=mould)]
        return _Text(text=text, cast=cast, raws=(), volume=Volume(jobs=1))
    raws = jdl.read_descriptions(source) if isinstance(source, str) else (source,)
    together = sum((parametric.volume(raw) for raw in raws), Volume())
    return _Text(text=text, cast=None, raws=raws, volume=together)


def record_as_text(source: Mapping[str, object]) -> str:
    """A record as JSON, its expressions as their text."""
    return json.dumps(source, ensure_ascii=False, default=_expression)


def _expression(value: object) -> object:
    return value.text if isinstance(value, Unevaluated) else str(value)
