"""Plans of submissions for a service that makes none, as those of 1.0, or none so large.

Where the whole program is installed, it makes the plan as services do. Otherwise names of files are found in
a simple way: each text is taken for one description.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from pilotage.client.api import ApiError, Json
from pilotage.client.errors import WrongUsage

#: Copies in one request.
_COPIES = 1000
#: The value of a keyword in JDL, CFG or YAML: in brackets, a list with dashes, or the rest of a line.
_VALUE = r"""(?imx)
    (?: ^ | [\[;{{,] )  \s*  ["']?  (?:{names})  ["']?  \s* (?: = (?!=) | : )
    ( \s* [\[{{] (?: "[^"]*" | '[^']*' | [^\]}}"'] )* [\]}}]  |  (?: \s* ^ \s* -\s .* )+  |  [^;\n]* )
"""
_PATTERNS = {
    "files": re.compile(_VALUE.format(names="InputSandbox|Input_Sandbox")),
    "executables": re.compile(_VALUE.format(names="Executable")),
    "vo": re.compile(_VALUE.format(names="VO|VirtualOrganization|Virtual_Organization")),
}
_ITEM = re.compile(r"""["'] ([^"']*) ["']  |  ([^\s,\[\]{}"']+)""", re.VERBOSE)
#: Comments, and texts in quotes, in which there is none.
_COMMENT = re.compile(
    r"""("[^"\n]*"|'[^'\n]*') | /\*.*?\*/ | (?:^|(?<=[\s;]))(?://|\#)[^\n]*""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
#: Names of files that the service or the grid has.
_ELSEWHERE = re.compile(r"(?:lfn|sb|sha256):|[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def make_plan(
    sources: Sequence[Json], parameters: Mapping[str, Sequence[str]], count: int, *, reason: ApiError
) -> Json:
    """The plan as the service would answer it; `reason`: why it did not, for messages."""
    try:
        from optimizers.submit import plan
        from optimizers.submit.plan import GivenSource
    except ModuleNotFoundError:
        return _plan_simply(sources, parameters, count, reason=reason)
    given = [
        GivenSource(
            content=each["jdl"] if "jdl" in each else each["job"], name=each["name"], place=each["place"]
        )
        for each in sources
    ]
    return asdict(plan.plan_submission(given, parameters=parameters, count=count, is_bounded=False))


def _plan_simply(
    sources: Sequence[Json], parameters: Mapping[str, Sequence[str]], count: int, *, reason: ApiError
) -> Json:
    if parameters:
        raise WrongUsage(f"parameters need a service that plans submissions, or the whole program: {reason}")
    requests = [
        {**_read_simply(source), "parts": [(index, copies)], "place": source["place"], "jobs": copies}
        for index, source in enumerate(sources)
        for copies in _portions(count)
    ]
    return {
        "descriptions": len(sources),
        "pieces": [{"source": index, "job": None} for index in range(len(sources))],
        "requests": requests,
    }


def _portions(count: int) -> Iterator[int]:
    for start in range(0, count, _COPIES):
        yield min(_COPIES, count - start)


def _read_simply(source: Json) -> Json:
    """The local files, the program and the VO of a description."""
    text = _COMMENT.sub(r"\1", _unfold(source["jdl"])) if "jdl" in source else _as_text(source["job"])
    files, executables, vos = (_items(pattern, text) for pattern in _PATTERNS.values())
    if any("%" in name for name in files):
        raise WrongUsage(
            f"{source['name']}: InputSandbox with placeholders needs a service that plans submissions, "
            "or the whole program"
        )
    local = [name for name in files if not _ELSEWHERE.match(name)]
    unsent = [] if len(local) < len(files) else [each for each in executables if each not in files]
    is_text = "jdl" in source
    return {"files": local, "executables": unsent, "vo": next(iter(vos), None), "is_text": is_text}


def _unfold(text: str) -> str:
    """A description that is one JSON object as lines; any other text as it is."""
    try:
        content = json.loads(text)
    except ValueError:
        return text
    return _as_text(content) if isinstance(content, dict) else text


def _as_text(content: Mapping[str, object]) -> str:
    """The keywords of a description, one in a line."""
    return "\n".join(f"{name} = {json.dumps(value, default=str)}" for name, value in content.items())


def _items(pattern: re.Pattern[str], text: str) -> list[str]:
    """The names in the values of a keyword."""
    return [
        name
        for value in pattern.findall(text)
        for quoted, plain in _ITEM.findall(value)
        for name in (part.strip() for part in (quoted or plain).split(","))
        if name not in ("", "-")
    ]
