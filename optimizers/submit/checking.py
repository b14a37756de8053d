"""Parse and check a whole submission, and run the optimizers for a description, without storing anything."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter

from cs_config.classes.queue_classes import largest_sizes
from cs_config.options import bounds
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.chain import chain
from optimizers.chain.chain import Done, Failed, Hold, JobContext, make_context
from optimizers.description import description as descriptions
from optimizers.description import jdl, parametric
from optimizers.description.description import JobDescription
from optimizers.description.parametric import SharedDescription, SplitDescription, Volume
from optimizers.description.template_cache import DescriptionTemplate, TemplateMatcher
from optimizers.steps.job_scheduling import derive_requirement_class
from optimizers.submit.submitter import Ownership, Submitter, resolve_ownership
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.errors import MOST_PROBLEMS, InvalidInput, InvalidJob, NotAllowed, Problem
from requirements.requirement_class import RequirementClass
from taskqueue.jobs.jobs import Job

#: One description: its text, or an object from a JSON body.
Source = str | Mapping[str, object]
#: Raises InvalidJob if the sender could not use a job.
CheckJob = Callable[[JobDescription], None]
#: Raises QuotaExceeded if there is no room for these numbers of jobs, by VO and owner.
RequireRoom = Callable[[Mapping[tuple[str, str], int]], None]

#: Submissions above this number of jobs are checked against the quota before they are expanded.
_FEW = 1000
#: Expressions whose work is bounded for each of them is enough.
_MOST_UNCOUNTED = 2
#: Placeholder for the archive, which is sent only with a submission.
_ARCHIVE = f"sha256:{'0' * 64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedJobs:
    """Jobs that share a description, ready to be stored."""

    source: str  #: the submitted text
    path: str  #: position in the submission, for messages
    submitted: SharedDescription
    template: DescriptionTemplate | None = (
        None  #: template whose body has the placeholders of its one member; None: `submitted.body` has them
    )


def check_sources(
    config: Configuration,
    submitter: Submitter,
    sources: Sequence[Source],
    *,
    sandbox: str | None = None,
    require_room: RequireRoom | None = None,
    check_job: CheckJob | None = None,
) -> list[CheckedJobs]:
    """Parse and check everything that needs no database.

    The declared numbers of jobs are summed before any job is created; `require_room` checks the quota for
    many, `check_job` each job with its own values. InvalidJob has the problems of all descriptions, each with
    its index; of very many the first.
    """
    checking = _Checking(config=config, submitter=submitter, sandbox=sandbox, check_job=check_job)
    texts = checking.read(sources)
    checking.check_volume(texts, require_room)
    checked = checking.expand(texts)
    checking.check_work(checked)
    if checking.problems:
        raise InvalidJob([problem for _, problem in sorted(checking.problems, key=itemgetter(0))])
    if not checked:
        raise InvalidJob([Problem(path="jobs", message="is empty: there is nothing to submit")])
    return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A parsed source, shared by equal sources."""

    text: str
    matched: list[CheckedJobs] | None  #: the jobs of a text that matches a template
    parsed: Sequence[SplitDescription]  #: otherwise the descriptions in it
    volume: Volume


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A text and its position in the submission."""

    index: int
    path: str
    text: _Text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checking:
    """Parses the sources of one submission, creates their jobs and collects the problems."""

    config: Configuration
    submitter: Submitter
    sandbox: str | None
    check_job: CheckJob | None = None
    problems: list[tuple[int, Problem]] = field(default_factory=list)  #: with the index of the source

    def read(self, sources: Sequence[Source]) -> list[_Placed]:
        """Parse the sources without expanding them; invalid ones are left out."""
        matcher = TemplateMatcher(self.config, self.submitter, self.sandbox) if len(sources) > 1 else None
        alike: dict[str, _Text] = {}
        found: list[_Placed] = []
        tokens = values = 0
        for index, source in enumerate(sources):
            path = f"jobs[{index}]/" if len(sources) > 1 else ""
            text = source if isinstance(source, str) else record_as_text(source)
            is_new = text not in alike
            with self._collecting(index, path):
                if len(text) > bounds.DESCRIBED:
                    message = f"has {len(text)} characters, allowed are {bounds.DESCRIBED}"
                    raise InvalidJob([Problem(path="description", message=message)])
                if is_new:
                    alike[text] = _read(matcher, source, text, path)
                found.append(_Placed(index=index, path=path, text=alike[text]))
            if len(self.problems) >= MOST_PROBLEMS:
                break
            if is_new and isinstance(source, str) and (text not in alike or alike[text].matched is None):
                tokens += jdl.count_tokens(text)
                if index and tokens > bounds.DESCRIBED_TOKENS:
                    what = "words, strings and signs in different texts"
                    raise InvalidJob([_too_many(tokens, what, bounds.DESCRIBED_TOKENS)])
            if is_new and not isinstance(source, str):
                values += parametric.count_values(source)
                if values > bounds.RECORD_VALUES:
                    raise InvalidJob([_too_many(values, "values in different jobs", bounds.RECORD_VALUES)])
        return found

    def check_volume(self, texts: Sequence[_Placed], require_room: RequireRoom | None) -> None:
        """Refuse more jobs, or more text in them, than one submission may make or has room for."""
        together = sum((each.text.volume for each in texts), Volume())
        # Equal texts are expanded once.
        different = sum({each.text.text: each.text.volume for each in texts}.values(), Volume())
        for what, seen, most in (
            ("jobs", together.jobs, bounds.SUBMITTED_JOBS),
            ("characters of one description with its placeholders filled", together.longest, bounds.FILLED),
            ("characters with all placeholders filled", together.characters, bounds.ALL_FILLED),
            ("values to be read with placeholders filled", different.values, bounds.FILLED_VALUES),
            (
                "words, strings and signs in different Requirements and Rank",
                different.expression_tokens if together.jobs > 1 else 0,
                bounds.EXPRESSION_TOKENS,
            ),
        ):
            if seen > most:
                raise InvalidJob([_too_many(seen, what, most)])
        if require_room is not None and together.jobs > _FEW:
            require_room(self._declared(texts))

    def _declared(self, texts: Sequence[_Placed]) -> Counter[tuple[str, str]]:
        """Count the jobs that parametric descriptions declare, by VO and owner; others are counted later."""
        declared: Counter[tuple[str, str]] = Counter()
        for split in (split for each in texts for split in each.text.parsed if split.parameters):
            with suppress(InvalidJob, NotAllowed):  # reported with its position by `expand`
                whose = resolve_ownership(split.template, self.submitter, self.config)
                declared[whose.vo, whose.owner] += split.volume.jobs
        return declared

    def expand(self, texts: Sequence[_Placed]) -> list[CheckedJobs]:
        """Create the jobs of all texts; equal texts are expanded once."""
        checked: list[CheckedJobs] = []
        alike: dict[str, list[CheckedJobs]] = {}
        for each in texts:
            if len(self.problems) >= MOST_PROBLEMS:
                break
            text = each.text.text
            try:
                with self._collecting(each.index, each.path):
                    if text not in alike:
                        alike[text] = each.text.matched or [
                            CheckedJobs(source=text, path=each.path, submitted=submitted)
                            for split in each.text.parsed
                            for submitted in parametric.expand_description(
                                split, self.submitter, self.config, self.sandbox
                            )
                        ]
                        if self.check_job is not None:
                            for member in (each for made in alike[text] for each in made.submitted.members):
                                self.check_job(member.whole)
                    checked += alike[text]
            except NotAllowed as refused:
                raise NotAllowed(f"{each.path}{refused}") from None
        return checked

    def check_work(self, checked: Sequence[CheckedJobs]) -> None:
        """Refuse several expressions that together read or build too long texts at one queue or another."""
        expressions = {
            (each.submitted.whose.vo, part.text)
            for each in checked
            for member in each.submitted.members
            for part in (member.description.requirements, member.description.rank)
            if isinstance(part, Expression)
        }
        if len(expressions) < _MOST_UNCOUNTED:
            return
        work = sum(evaluation.work_of_text(text, largest_sizes(self.config, vo)) for vo, text in expressions)
        if work > bounds.EXPRESSION_WORK:
            percent = math.ceil(100 * work / bounds.EXPRESSION_WORK)
            message = (
                "the texts that the different Requirements and Rank read and build are too long, "
                f"{percent} % of what is allowed in one submission; send several"
            )
            raise InvalidJob([Problem(path="jobs", message=message)])

    @contextmanager
    def _collecting(self, index: int, path: str) -> Iterator[None]:
        try:
            yield
        except InvalidInput as invalid:
            self.problems.extend(
                (index, replace(each, path=f"{path}{each.path}")) for each in invalid.problems
            )


def _too_many(seen: int, what: str, most: int) -> Problem:
    message = (
        f"{seen} {what} are too many, allowed in one submission are {most}; send several, "
        "as `pilotage job submit` does"
    )
    return Problem(path="jobs", message=message)


def _read(matcher: TemplateMatcher | None, source: Source, text: str, path: str) -> _Text:
    """Parse one source; a text that matches a template is not parsed as a whole."""
    if matcher is not None and (found := matcher.fill(text)) is not None:
        template, member = found
        submitted = replace(template.submitted, members=(member,))
        matched = [CheckedJobs(source=text, path=path, submitted=submitted, template=template)]
        return _Text(text=text, matched=matched, parsed=(), volume=Volume(jobs=1))
    raws = jdl.read_descriptions(source) if isinstance(source, str) else (source,)
    parsed = tuple(map(parametric.split_description, raws))
    together = sum((each.volume for each in parsed), Volume())
    return _Text(text=text, matched=None, parsed=parsed, volume=together)


def record_as_text(source: Mapping[str, object]) -> str:
    """Convert a record to JSON, as `jdl.description_as_json`."""
    return json.dumps(jdl.description_as_json(source), ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Result of the optimizers for a job that is not stored."""

    whose: Ownership
    description: JobDescription
    requirement_class: RequirementClass  #: attributes for matching, even if the job would be held or failed
    trouble: str | None  #: why it would be held or failed; None: it would wait for a pilot


#: Whether a queue of the configuration is eligible for a job.
HasQueue = Callable[[Configuration, DryRun], bool]


def dry_run_source(config: Configuration, submitter: Submitter, source: Source, *, now: datetime) -> DryRun:
    """Run the optimizers for the first job of a description; InvalidJob: the submission would refuse it."""
    submitted = check_sources(config, submitter, [source], sandbox=_ARCHIVE)[0].submitted
    return dry_run_description(config, submitted.whose, submitted.members[0].whole, now=now)


def dry_run_description(
    config: Configuration, whose: Ownership, description: JobDescription, *, now: datetime
) -> DryRun:
    """Run the optimizers for a job with this description."""
    context = make_context(config, now)
    candidate = JobContext(
        job_id=0, vo=whose.vo, owner=whose.owner, owner_group=whose.owner_group, description=description
    )
    outcome = chain.run_chain(candidate, chain.installed_steps(), context).outcome
    asked = outcome.candidate.requirement_class if isinstance(outcome, Done) else None
    return DryRun(
        whose=whose,
        description=description,
        # From the description alone, without its data; the job has no pool.
        requirement_class=asked or derive_requirement_class(candidate, context),
        trouble=_failure_message(outcome) if isinstance(outcome, Hold | Failed) else None,
    )


def has_queue_left(
    config: Configuration, job: Job, body: Mapping[str, object], has_queue: HasQueue, *, now: datetime
) -> bool:
    """Whether a queue could run a job if this, without placeholders, were its description."""
    whose = Ownership(vo=job.vo, owner=job.owner, owner_group=job.owner_group)
    read = descriptions.parse_description(body, options_for(config, job.vo), is_accepted=True)
    return has_queue(config, dry_run_description(config, whose, read, now=now))


def _failure_message(outcome: Hold | Failed) -> str:
    return f"the optimizers would {'hold' if isinstance(outcome, Hold) else 'fail'} it: {outcome.reason}"
