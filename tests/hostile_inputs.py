"""Hostile inputs for each parser: descriptions, ClassAds, YAML, DIRAC's formats, archives, tokens.

An input is a good one with mutations. A parser accepts it or refuses it by its own error: any other error,
and more than seconds of CPU time, is a flaw. A test tries some; for longer, by hand:

    python -m tests.hostile_inputs --inputs 1000000 --seed 1 [--parser archive]
"""

import argparse
import io
import json
import logging
import random
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import jwt

from cs_config import validate
from cs_config.formats import dirac_text
from cs_config.source import yaml_reader
from optimizers.submit import checking
from pilotage.dirac_door import dialect, jencode
from pilotage.fabric.pilot.payload import archives
from pilotage.fabric.pilot.payload.archives import UnsafeArchive
from pilotage.service.auth import keys
from pilotage.service.auth.callers import grant
from pilotage.service.auth.keys import KeyRing
from pilotage.service.auth.tokens import ISSUER, Tokens
from requirements import canonical
from requirements.classad import classad_files, evaluation, expression
from requirements.errors import PilotageError
from tests.archives import tar
from tests.submitted import ANN
from tests.waiting import grid

log = logging.getLogger(__name__)

_PROJECT = Path(__file__).parent.parent
#: CPU seconds of one input at most, and after which it is ended.
_SLOW, _ENDED = 3.0, 20
_NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)

#: What parsers have stumbled over: numbers, quotes, control and wide characters, deep and long things.
_PLAIN = """
0 -1 1e999 -0.0 0x10 077 99999999999999999999 1e-400 NaN inf .5. 1_0 null true ~ yes undefined error
|| && == =?= =!= ; , : | > // /* # --- ... &a *a << ? ! " ' \"\"\" \\ \\x41 \\777 \\u0000 ../.. /etc/passwd
regexp( eval( random( time() userHome( ifThenElse( strcat( substr( MY. other. ${PATH} %(x)s %s%n {events}
Requirements Parameters ParameterStart Owner Site VO InputSandbox __class__ %YAML !!python/object:os.system
"""
WORDS = (
    *_PLAIN.split(),
    *("\x00", "\x1b[31m", "\r", "\r\n", "\n", "\u2028", "\ufeff", "\u202e", "\U0010ffff", "\ud800"),
    *("é", "e\u0301", "ﬀ", "İ", "١", "a" * 5000, "(" * 300, "[" * 300, "{" * 300),
    *("!" * 400, "- " * 300, "1+" * 400, "a.b." * 200, " ? " * 50, "{\n" * 100),
)


class _TooSlowError(BaseException):
    """The input was ended; no parser may catch it."""


@dataclass(frozen=True)
class Parser:
    """One way into the program, with good inputs."""

    name: str
    parse: Callable[[str], object]
    seeds: Sequence[str]
    refusals: tuple[type[Exception], ...] = (PilotageError,)


@dataclass(frozen=True)
class Flaw:
    """An input that did harm."""

    parser: str
    text: str
    problem: str

    def __str__(self) -> str:
        return f"{self.parser}: {self.problem}: {self.text[:300]!r} ({len(self.text)} characters)"


def list_parsers(directory: Path) -> Iterator[Parser]:
    """All parsers; archives are unpacked in the directory."""
    jobs = (
        '[ Executable = "/bin/sh"; Arguments = "-c \'echo %s\'"; Parameters = {"a","b"}; ]',
        '[ Executable="x"; Requirements = other.RAM > 20 && regexp("^a", other.Name); Rank = other.CPU; ]',
        '[ Executable="x"; Requirements = [ Memory = 4000; Tags = {"a"}; ]; CPUTime = 9; Site = {"A.B.c"}; ]',
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
    yield Parser("dirac jdl", _check_dirac_jdl, _DIRAC_JDLS)
    yield Parser("dirac form", lambda text: jencode.read_form(text.encode(errors="replace")), _DIRAC_FORMS)
    yield Parser("archive", _Unpacking(directory), list(_archives()), (UnsafeArchive,))
    tokens = _TokenCheck()
    yield Parser("token", tokens.check, tokens.seeds)
    yield Parser("claims", tokens.check_claims, tokens.claims)


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


_DIRAC_JDLS = (
    'Executable = /bin/ls; OutputSandbox = {std.err, "a b"}; Parameters = {a, b}; Arguments = %s %n;',
    '[ Executable="x"; ExecutionEnvironment = {A=1, B=x%20y}; SoftwarePackages = {"a.v1", b}; ]',
    "Parameters = 3; ParameterStart = 0.; Parameters.A = {1, 2}; Executable = x; InputSandbox = SB:SE|/a",
)
_DIRAC_FORMS = (
    'method=submitJob&args=["Executable+=+/bin/ls;"]&clientVO=unknown&extraCredentials="hosts"',
    "method=a&args=%5B1%2C%7B%22__dCls%22%3A%22dt%22%2C%22obj%22%3A%222026-11-22+12%3A00%3A00%22%7D%5D",
    'method=a&args=[{"__dCls": "b64", "obj": "AAAA"}, 1.5e3, null]&extraCredentials=["/DC=a/CN=b","g"]',
)


def _check_dirac_jdl(text: str) -> None:
    read = dialect.read_jdl(text)
    dialect.require_readable(read)
    checking.check_sources(_GRID, ANN, [read])


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


def _archives() -> Iterator[str]:
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


def mutate(dice: random.Random, seeds: Sequence[str]) -> str:
    """A good input with some changes."""
    text = dice.choice(seeds)
    for _ in range(dice.choice((1, 1, 2, 3, 8))):
        text = _change(dice, text, seeds)[:20_000]
    return text


def _change(dice: random.Random, text: str, seeds: Sequence[str]) -> str:
    """Insert, replace, remove, repeat, change a character, join with another input, or cut."""
    at = dice.randint(0, len(text))
    end = min(len(text), at + dice.randint(0, 40))
    kind = dice.randrange(7)
    if kind == 0:
        return text[:at] + dice.choice(WORDS) + text[at:]
    if kind == 1:
        return text[:at] + dice.choice(WORDS) + text[end:]
    if kind == 2:
        return text[:at] + text[end:]
    if kind == 3:
        return text[:at] + text[at:end] * dice.choice((2, 5, 50)) + text[end:]
    if kind == 4:
        return text[:at] + chr(dice.randrange(dice.choice((128, 256, 0x11000)))) + text[at + 1 :]
    if kind == 5:
        return text[:end] + dice.choice(seeds)[at:]
    return text[:at]


def find_flaws(parser: Parser, *, inputs: int, seed: int) -> Iterator[Flaw]:
    """Try so many inputs at one parser."""
    dice = random.Random(f"{seed} {parser.name}")
    for _ in range(inputs):
        text = mutate(dice, parser.seeds)
        began = time.process_time()
        try:
            with _ended_after(_ENDED):
                parser.parse(text)
        except parser.refusals:
            pass
        except (Exception, _TooSlowError) as error:  # noqa: BLE001 - that is what is looked for
            yield Flaw(parser.name, text, f"{type(error).__name__}: {str(error)[:300]}")
            continue
        if (took := time.process_time() - began) > _SLOW:
            yield Flaw(parser.name, text, f"{took:.1f} s of CPU time")


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End what takes more CPU time; a busy machine does not count."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlowError(f"took more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def main() -> int:
    """Try as many inputs as one wants; 1 if there is a flaw."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile_inputs", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="for each parser")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--parser", action="append", help="may be repeated; default: all")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    log.info("seed %d", options.seed)
    number = 0
    with tempfile.TemporaryDirectory() as directory:
        for each in list_parsers(Path(directory)):
            if options.parser and each.name not in options.parser:
                continue
            began = time.monotonic()
            for flaw in find_flaws(each, inputs=options.inputs, seed=options.seed):
                number += 1
                log.error("%s", flaw)
            log.info("%s: %d inputs in %.0f s", each.name, options.inputs, time.monotonic() - began)
    return int(number > 0)


if __name__ == "__main__":
    sys.exit(main())
