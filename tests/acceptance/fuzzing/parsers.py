"""Parsers of what outsiders write: descriptions, ClassAds, YAML, DIRAC's formats, archives, tokens.

A parser accepts an input or refuses it by its own error: any other error, and more than seconds of CPU time,
is a flaw.
"""

import io
import json
import signal
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType

import jwt

from cs_config import validate
from cs_config.editing import patch, proposals
from cs_config.editing.permissions import Rights
from cs_config.formats import dirac_text
from cs_config.formats.importers import Importer
from cs_config.source import yaml_reader
from optimizers.submit import checking
from pilotage.fabric.pilot.payload import archives
from pilotage.fabric.pilot.payload.archives import UnsafeArchive
from pilotage.fabric.runner import status_files
from pilotage.service.auth import keys
from pilotage.service.auth.callers import grant
from pilotage.service.auth.keys import KeyRing
from pilotage.service.auth.tokens import ISSUER, Tokens
from requirements import canonical
from requirements.classad import classad_files, evaluation, expression
from requirements.errors import PilotageError
from tests.acceptance.fuzzing import mutations
from tests.acceptance.fuzzing.mutations import Flaw
from tests.support.factories.archives import tar
from tests.support.factories.queued_jobs import grid
from tests.support.factories.submitted_jobs import ANN
from tests.support.left_out import is_there

_PROJECT = Path(__file__).parents[3]
#: CPU seconds of one input at most; after which it is ended; and after which its process is, if that fails.
_SLOW, _ENDED, _KILLED = 3.0, 20, 60
_NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)


class _TooSlowError(BaseException):
    """The input was ended; no parser may catch it."""


@dataclass(frozen=True)
class Parser:
    """One way into the program, with good inputs."""

    name: str
    parse: Callable[[str], object]
    seeds: Sequence[str]
    refusals: tuple[type[Exception], ...] = (PilotageError,)


def list_parsers(directory: Path) -> Iterator[Parser]:
    """All parsers; archives are unpacked in the directory."""
    jobs = (
        '[ Executable = "/bin/sh"; Arguments = "-c \'echo %s\'"; Parameters = {"a","b"}; ]',
        '[ Executable="x"; Requirements = other.RAM > 20 && regexp("^a", other.Name); Rank = other.CPU; ]',
        '[ Executable="x"; Requirements = [ Memory = 4000; Tags = {"a"}; ]; CPUTime=900; Site = {"A.B.c"}; ]',
        "{Executable: x, Parameters: 3, ParameterStart: 1, ParameterStep: 2, Requirements: {Memory: 5}}",
        "Executable: x\nSite: [A.B.ch, C.D.ch]\n---\nExecutable: y\n",
    )
    expressions = (
        "other.GlueHostBenchmarkSI00 > 500 ? other.A > 1000 : other.B > 2000",
        'member("x", other.Tags) && !(other.RAM <= 5 || other.Name =?= undefined)',
        'regexp("^[a-z]+$", other.Name) && size(other.Tags) > 2 && (1 + 2 * 3) / 4 >= other.X',
    )
    config = (_PROJECT / "examples" / "jim" / "resources.yaml").read_text()
    yield Parser("job", _check_job, jobs)
    yield Parser("expression", _check_expression, expressions)
    ad = (_PROJECT / "tests" / "data" / "glue_ce.ad").read_text()
    yield Parser("ad", classad_files.read_ad_file, [ad, *jobs[1:3]])
    yield Parser("yaml", lambda text: yaml_reader.read_yaml(text, "x"), [config, *jobs[3:]])
    yield Parser("configuration", validate.parse, [config])
    yield Parser("cfg", lambda text: dirac_text.read_text(text, "x"), [_CFG])
    yield Parser("job cfg", _check_job, _JOB_CFGS)
    if is_there("formats"):
        yield from _list_parsers_of_formats(ad)
    yield Parser("edits", _check_edits, _EDITS)
    yield Parser("section", _check_section, [_SECTION])
    yield Parser("reports of payloads", _check_reports, _REPORTS)
    if is_there("dirac"):
        yield from _list_parsers_of_dirac()
    yield Parser("archive", _Unpacking(directory), list(list_archives()), (UnsafeArchive,))
    tokens = _TokenCheck()
    yield Parser("token", tokens.check, tokens.seeds)
    yield Parser("claims", tokens.check_claims, tokens.claims)


def _list_parsers_of_formats(ad: str) -> Iterator[Parser]:
    from pilotage.plugins.formats import ce_ads_import, dirac_import, glidein_factory

    yield Parser("CE ads", partial(_import, partial(ce_ads_import.propose_ads, site="LCG.X.ch")), [ad])
    yield Parser("factory", partial(_import, glidein_factory.propose_factory), _FACTORIES)
    yield Parser("DIRAC configuration", partial(_import, dirac_import.propose_dirac), [_DIRAC])


def _list_parsers_of_dirac() -> Iterator[Parser]:
    from pilotage.plugins.dirac import dialect, jencode

    def check_jdl(text: str) -> None:
        checking.check_sources(_GRID, ANN, [dialect.read_jdl(text)], check_job=dialect.require_readable)

    yield Parser("dirac jdl", check_jdl, _DIRAC_JDLS)
    yield Parser("dirac form", lambda text: jencode.read_form(text.encode(errors="replace")), _DIRAC_FORMS)


_CFG = """
# Two levels
Resources
{
  Sites
  {
    CE = ce1
    MaxRAM = 4000
    MaxRAM += 1
  }
}
Operations
{
}
"""


#: In lines, and as RFC #7 has the sections.
_JOB_CFGS = (
    'Executable = /bin/sh\nArguments = -c "a, b" # c\nInputData = /a, /b\nRequirements\n{\n  Memory = 4\n}\n',
    'Executable = x\nParameters = 1, 2\nRequirements = other.RAM > 20 && other.Name == "a"\nCPUTime = 900\n',
)
_DIRAC = """
Resources
{
 Sites
 {
  LCG
  {
   LCG.A.ch
   {
    CE = ce1
    CEs
    {
     ce1
     {
      CEType = ARC
      Queues
      {
       q
       {
        maxCPUTime = 2000
        VO = cms, dune
       }
      }
     }
    }
   }
  }
 }
}
Registry
{
 VO
 {
  cms
  {
   VOMSName = cms
  }
 }
 Groups
 {
  cms_user
  {
   VO = cms
   Properties = NormalUser, JobSharing
  }
 }
}
"""
_FACTORIES = (
    """<glidein><entries><entry name="E" enabled="True" gatekeeper="ce1.example.tw ce1.example.tw:9619"
    gridtype="condor" rsl="(queue=long)"><config><max_jobs><per_entry glideins="5"/></max_jobs></config>
    <attrs><attr name="GLIDEIN_CPUS" value="8"/><attr name="GLIDEIN_Site" value="A"/>
    <attr name="GLIDEIN_Supported_VOs" value="CMS, OSGVO"/></attrs></entry></entries></glidein>""",
    """A: {ce1.example.tw: {E: {attrs: {GLIDEIN_CPUS: {value: 8}, GLIDEIN_Country: {value: TW}},
    gridtype: condor, limits: {entry: {glideins: 5}}, submit_attrs: {+queue: long}}}}""",
)
#: Values by path, and removed paths.
_EDITS = (
    '{"set": {"Resources/Sites/A.B.ch/MaxRAM": 5, "Registry/VO/x": {}}, "remove": ["Registry/Groups"]}',
    '{"set": {"Resources/Sites/A.B.ch/CEs/ce/Queues/q": {"VOs": {"cms": {"MaxRAM": 1}}}}, "remove": []}',
)
_SECTION = "A.B.ch:\n  VO: [cms]\n  CEs:\n    ce1: {MaxRAM: 5, Queues: {q: {}}}\n"
_REPORTS = (
    '{"cause": "payload", "status": "Done", "exit_code": 3, "phases": [["a", 1, 2]], "output_tail": "x"}',
    '{"cause": "site", "minor_status": "x", "application_status": "y", "phases": [["b", "3", 5], []]}',
    "PROGRESS a 1 of 2\nstep 3 of 4\n",
)
_DIRAC_JDLS = (
    'Executable = /bin/ls; OutputSandbox = {std.err, "a"}; Parameters = {a, b}; Arguments = %s %n;',
    '[ Executable="x"; ExecutionEnvironment = {A=1, B=x%20y}; SoftwarePackages = {"a.v1", b}; ]',
    "Executable = x; Parameters = {{a, b}, {c}}; InputSandbox = {d, %s}; Kept = [ a = [ b = 1; ]; ];",
    "Parameters = 3; ParameterStart = 0.; Parameters.A = {1, 2}; Executable = x; InputSandbox = SB:SE|/a",
)
_DIRAC_FORMS = (
    'method=submitJob&args=["Executable+=+/bin/ls;"]&clientVO=unknown&extraCredentials="hosts"',
    "method=a&args=%5B1%2C%7B%22__dCls%22%3A%22dt%22%2C%22obj%22%3A%222026-11-22+12%3A00%3A00%22%7D%5D",
    'method=a&args=[{"__dCls": "b64", "obj": "AAAA"}, 1.5e3, null]&extraCredentials=["/DC=a/CN=b","g"]',
)


def _check_job(text: str) -> None:
    for checked in checking.check_sources(_GRID, ANN, [text]):
        json.dumps(dict(checked.submitted.body))


def _check_expression(text: str) -> None:
    parsed = expression.parse_expression(text)
    again = expression.canonical_text(parsed)
    canonical.pool_id(parsed, "vo")
    resource = {"MaxRAM": 4000, "Name": "abc", "Tags": ("a", "b"), "A": 1.5}
    assert evaluation.is_true(parsed.text, resource) in {True, False}
    expression.parse_expression(again)


_GRID = grid()


def _as_utf8(text: str) -> str:
    """Without what neither a file can have nor the interface accepts."""
    return text.encode(errors="replace").decode()


def _import(propose: Importer, text: str) -> None:
    propose(_GRID, {"x": _as_utf8(text)})


def _check_edits(text: str) -> None:
    try:
        body = json.loads(_as_utf8(text))
        values, removed = dict(body["set"]), [str(each) for each in body["remove"]]
    except (ValueError, TypeError, LookupError, RecursionError):
        return  # refused by the model of the request
    proposals.propose_edits(_GRID, _GRID, patch.read_edits(values, removed), Rights(everything=True))


def _check_section(text: str) -> None:
    edits = patch.edits_from_text(_GRID.tree, ("Resources", "Sites"), text)
    proposals.propose_edits(_GRID, _GRID, edits, Rights(everything=True))


def _check_reports(text: str) -> None:
    """What a payload can write on its node is shortened; wrong content is left out."""
    status_files.read_end(text)
    status_files.read_news(text)
    status_files.read_progress(text)


class _Unpacking:
    """Unpacks each archive in a directory of its own, beside a file that has to stay as it is."""

    LIMIT = 1 << 20

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        (directory / "untouched").write_text("untouched")

    def __call__(self, text: str) -> None:
        self._number += 1
        root = self._directory / f"root{self._number}"
        root.mkdir()
        try:
            archives.unpack(io.BytesIO(text.encode("latin-1", "ignore")), root, limit=self.LIMIT)
        finally:
            size = sum(
                each.lstat().st_size for each in root.rglob("*") if each.is_file() and not each.is_symlink()
            )
            outside = [each for each in root.rglob("*") if not each.resolve().is_relative_to(root.resolve())]
            archives.remove_tree(root)
            left = {each.name for each in self._directory.iterdir()}
            assert left == {"untouched"}, f"unpacked outside: {left}"
            assert (self._directory / "untouched").read_text() == "untouched"
            assert not outside, f"leads outside: {outside}"
            assert size <= self.LIMIT, f"{size} bytes, allowed are {self.LIMIT}"


def list_archives() -> Iterator[str]:
    plain = tar({"a.txt": b"content", "dir/b.txt": b"x" * 2000})
    yield plain.decode("latin-1")
    for compression in ("gz", "bz2", "xz"):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode=f"w:{compression}") as archive:  # type: ignore[call-overload]
            archive.addfile(tarfile.TarInfo("zeros"), io.BytesIO())
            big = tarfile.TarInfo("big")
            big.size = 1 << 21
            archive.addfile(big, io.BytesIO(bytes(1 << 21)))
        yield packed.getvalue().decode("latin-1")
    for name, kind, target in (
        ("../untouched", tarfile.REGTYPE, ""),
        ("/tmp/untouched", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, ".."),
        ("link/untouched", tarfile.REGTYPE, ""),
        ("hard", tarfile.LNKTYPE, "../untouched"),
        ("device", tarfile.CHRTYPE, ""),
        ("pipe", tarfile.FIFOTYPE, ""),
        ("é" * 120, tarfile.DIRTYPE, ""),
        ("x" * 300, tarfile.REGTYPE, ""),
    ):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for each, what, where in (("link", tarfile.SYMTYPE, ".."), (name, kind, target)):
                member = tarfile.TarInfo(each)
                member.type, member.linkname = what, where
                archive.addfile(member)
        yield packed.getvalue().decode("latin-1")


class _TokenCheck:
    """Verification of tokens: none but the minted ones is good."""

    def __init__(self) -> None:
        self._key = keys.generate()
        self._tokens = Tokens(KeyRing(signing=self._key))
        wishes: Sequence[Mapping[str, str]] = (
            {"role": "user", "vo": "cms", "user": "ada"},
            {"role": "pilot", "vo": "cms", "queue": "A.B.ch/ce/q"},
            {"role": "operator", "user": "root"},
        )
        self.seeds = [self._tokens.mint(grant(**each), now=_NOW)[0] for each in wishes]
        self._callers = {each: self._tokens.verify(each, now=_NOW).caller for each in self.seeds}
        unchecked = {"verify_signature": False, "verify_exp": False, "verify_iat": False}
        self.claims = [json.dumps(jwt.decode(each, options=unchecked)) for each in self.seeds]  # type: ignore[arg-type]

    def check(self, text: str) -> None:
        verified = self._tokens.verify(text, now=_NOW)
        assert verified.caller in self._callers.values(), "a forged token was accepted"

    def check_claims(self, text: str) -> None:
        """Whatever claims our own key signed."""
        try:
            claims = json.loads(text)
        except ValueError:
            return
        if isinstance(claims, dict):
            private, headers = self._key.private, {"kid": self._key.key_id}
            try:
                signed = jwt.encode(
                    {"iss": ISSUER, **claims}, private, algorithm=keys.ALGORITHM, headers=headers
                )
            except (TypeError, ValueError):
                return  # what the library cannot sign cannot come
            self._tokens.verify(signed, now=_NOW)


def find_flaws(
    parser: Parser,
    numbers: range,
    *,
    seed: int,
    note: Callable[[int], object] = lambda _number: None,
    counts: Counter[str] | None = None,
) -> Iterator[Flaw]:
    """Try these inputs at one parser; `note` gets the number of each before it is tried."""
    counts = Counter() if counts is None else counts
    for number in numbers:
        note(number)
        text = make_input(parser, seed, number)
        kind, problem = _try(parser, text)
        counts[kind] += 1
        if problem is not None:
            short = mutations.shorten(text, lambda each: _try(parser, each)[0]) if kind != _SLOW_ONE else text
            yield Flaw(parser.name, number, short, problem)


def make_input(parser: Parser, seed: int, number: int) -> str:
    """One input, always the same."""
    return mutations.mutate(mutations.roll(seed, parser.name, number), parser.seeds)


_SLOW_ONE = "too slow"


def _try(parser: Parser, text: str) -> tuple[str, str | None]:
    """Accepted, refused or the kind of flaw; and the problem if it is one."""
    began = time.process_time()
    kind = "accepted"
    try:
        with _ended_after(_ENDED):
            parser.parse(text)
    except parser.refusals:
        kind = "refused"
    except _TooSlowError as error:
        return _SLOW_ONE, str(error)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return type(error).__name__, f"{type(error).__name__}: {str(error)[:300]}"
    if (took := time.process_time() - began) > _SLOW:
        return _SLOW_ONE, f"{took:.1f} s of CPU time"
    return kind, None


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End what takes more CPU time; a busy machine does not count."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlowError(f"took more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    signal.setitimer(signal.ITIMER_PROF, _KILLED)  # its signal ends the process, also within a library
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGVTALRM, before)
