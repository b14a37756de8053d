"""Options of DIRAC's `Operations` and `Registry` in our layout.

Up to release 8 options of an installation's setup stand under its name: `Operations/<setup>` and
`Operations/<vo>/<setup>`, the latter beside `Operations/<vo>/Defaults`; release 9 has no setups.

Source: DIRAC's OperationsHelper, JobManifest, JobPolicy, Limiter and SharesCorrector.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from cs_config.errors import one_problem
from cs_config.formats import importers
from cs_config.options import keywords
from cs_config.options.operations import DEFAULTS
from cs_config.source.sections import Section, as_list
from requirements.values import fold

Tree = dict[str, object]
#: Records that something at a path is not carried over.
Note = Callable[[str, str], object]

#: Prefixes of options of `JobDescription`, with the value that they set for the keyword behind them.
_PREFIXES: Final = {"Default": "default", "Min": "min", "Max": "max"}
#: Options that only look like one of these.
_WHOLE: Final = frozenset({"maxinputdata", "maxparametricjobs"})
#: Options that switch limits off, with these limits.
_SWITCHES: Final = {"CheckJobLimits": "RunningLimit", "CheckMatchingDelay": "MatchingDelay"}
#: Sections of options of all, or of a VO; beside these DIRAC does not read them.
_OF_SCOPES: Final = frozenset({"JobDescription", "JobScheduling"})
_TO_START: Final = "ShareCorrectorsToStart"
#: The corrector whose measure is ours; the suffix is that of DIRAC's newer database.
_CORRECTORS: Final = frozenset({"wmshistory", "monitoringhistory"})
_OF_CORRECTION: Final = ("Group", "MaxGlobalCorrection")
_OF_SLICE: Final = ("TimeSpan", "Weight", "MaxCorrection")


def find_setups(root: Section) -> tuple[str | None, frozenset[str]]:
    """The setup whose options count, None if it is not known; and all setups."""
    dirac = root.section("DIRAC")
    stated = next((str(leaf.value) for name, leaf in dirac.leaves() if name == "Setup" and leaf.value), None)
    listed = [name for name, _ in dirac.section("Setups").sections()]
    only = listed[0] if len(listed) == 1 else None
    return stated or only, frozenset({*listed, *([stated] if stated else [])})


def convert_operations(
    tree: Tree, *, setup: str | None, setups: Collection[str], note: Note
) -> dict[str, object]:
    """`Operations`, with parsed values, in our layout."""
    tree = _lift_setups(tree, setup, setups, note)
    for scope, options in _sections(tree):
        path = f"Operations/{scope}"
        _convert_keywords(_section(options, "JobDescription"))
        _convert_corrections(_section(options, "JobScheduling"), path, note)
    _apply_switches(tree, note)
    return tree


def set_default_groups(registry: Tree, listed: object) -> None:
    """Set the first of DIRAC's default groups that belongs to a VO as that of the VO, if it has none."""
    groups, vos = _section(registry, "Groups"), _section(registry, "VO")
    of_vo: dict[str, str] = {}
    for group in map(str, as_list(listed)):
        if vo := _section(groups, group).get("VO"):
            of_vo.setdefault(fold(str(vo)), group)
    for name, vo_options in _sections(vos):
        if fold(name) in of_vo:
            vo_options.setdefault("DefaultGroup", of_vo[fold(name)])


def _lift_setups(tree: Tree, setup: str | None, setups: Collection[str], note: Note) -> Tree:
    """The options without the level of setups: those of the one that counts, over those of all."""
    lifted: Tree = {}
    for scope, options in tree.items():
        if scope in _OF_SCOPES:
            note(
                f"Operations/{scope}", "not carried over: DIRAC reads it below Defaults, a VO or a setup only"
            )
            continue
        if scope in setups and scope != setup:
            _leave_out(f"Operations/{scope}", setup, note)
            continue
        ours = DEFAULTS if scope == setup else scope
        if isinstance(options, dict) and ours != DEFAULTS:
            options = _lift_of_vo(scope, options, setup, setups, note)
        before = lifted.get(ours)
        if isinstance(before, dict) and isinstance(options, dict):
            pair = (before, options) if scope == setup else (options, before)
            lifted[ours] = importers.merge_trees(*pair)
        else:
            lifted[ours] = options
    return lifted


def _lift_of_vo(vo: str, options: Tree, setup: str | None, setups: Collection[str], note: Note) -> Tree:
    levels = {name: below for name, below in options.items() if name == DEFAULTS or name in setups}
    lifted = {name: value for name, value in options.items() if name not in levels}
    for name in (DEFAULTS, setup):
        below = levels.pop(name, None) if name else None
        lifted = importers.merge_trees(lifted, below) if isinstance(below, dict) else lifted
    for name in levels:
        _leave_out(f"Operations/{vo}/{name}", setup, note)
    return lifted


def _leave_out(path: str, setup: str | None, note: Note) -> None:
    """Leave out the options of another setup; ConfigError if nothing tells which setup counts."""
    if setup is None:
        message = "of one of several setups, and its options may restrict jobs: state DIRAC/Setup in the file"
        raise one_problem(path, message)
    note(path, f"not carried over: of another setup than {setup}")


def find_declaration(option: str) -> tuple[str, str] | None:
    """The keyword that an option of `JobDescription` declares, and what of it: `MaxCPUTime` is its `max`."""
    prefix = next((each for each in _PREFIXES if option.startswith(each)), None)
    if prefix is None or fold(option) in _WHOLE:
        return None
    keyword = keywords.find_keyword(option.removeprefix(prefix))
    return None if keyword is None else (keyword.name, _PREFIXES[prefix])


def _convert_keywords(description: Tree) -> None:
    """`MaxCPUTime = N` becomes `CPUTime: {max: N}`."""
    for option in [each for each in description if not isinstance(description[each], dict)]:
        if (found := find_declaration(option)) is None:
            continue
        keyword, side = found
        declared = description.setdefault(keyword, {})
        if isinstance(declared, dict):
            declared[side] = description.pop(option)


def _convert_corrections(scheduling: Tree, path: str, note: Note) -> None:
    """`ShareCorrections/WMSHistory/<name>/<slice>` becomes `ShareCorrections/<name>/TimeSlices/<slice>`."""
    corrections = scheduling.get("ShareCorrections")
    if not isinstance(corrections, dict) or not (
        _TO_START in corrections or _CORRECTORS.intersection(map(fold, corrections))
    ):
        return
    started = {fold(str(each)) for each in as_list(corrections.pop(_TO_START, []))}
    found: Tree = {}
    for kind, below in _sections(corrections):
        if fold(kind) not in _CORRECTORS & started:
            where = f"{path}/JobScheduling/ShareCorrections/{kind}"
            note(where, f"not carried over: it is not among {_TO_START}, or no history of use")
            continue
        for name, given in _sections(below):
            slices = {each: _pick(values, _OF_SLICE) for each, values in _sections(given)}
            found[name] = {**_pick(given, _OF_CORRECTION), **({"TimeSlices": slices} if slices else {})}
    if found:
        scheduling["ShareCorrections"] = found
    else:
        del scheduling["ShareCorrections"]


def _apply_switches(tree: Tree, note: Note) -> None:
    """Leave out limits that DIRAC does not apply, of all or of one VO."""
    defaults = _section(_section(tree, DEFAULTS), "JobScheduling")
    of_all = {limits: defaults.get(limits) for limits in _SWITCHES.values()}
    general = {switch: _is_on(defaults.pop(switch, True)) for switch in _SWITCHES}
    for scope, options in _sections(tree):
        if scope == DEFAULTS:
            continue
        scheduling = _section(options, "JobScheduling")
        for switch, limits in _SWITCHES.items():
            applies = _is_on(scheduling.pop(switch, general[switch]))
            inherited = of_all[limits]
            if applies and not general[switch] and isinstance(inherited, dict):
                scheduling[limits] = importers.merge_trees(inherited, _section(scheduling, limits))
            elif not applies:
                if scheduling.pop(limits, None) is not None:
                    note(f"Operations/{scope}/JobScheduling/{limits}", _explain(switch))
                if general[switch] and inherited is not None:
                    scheduling[limits] = None  # in place of those of all
    for switch, limits in _SWITCHES.items():
        if not general[switch] and defaults.pop(limits, None) is not None:
            note(f"Operations/{DEFAULTS}/JobScheduling/{limits}", _explain(switch))


def _is_on(value: object) -> bool:
    return str(value).lower() in ("y", "yes", "true", "1")  # everything else is false for DIRAC


def _explain(switch: str) -> str:
    return f"not carried over: {switch} = False, so DIRAC does not apply it"


def _pick(options: Tree, names: Collection[str]) -> Tree:
    return {name: options[name] for name in names if name in options}


def _sections(tree: Mapping[str, object]) -> Iterator[tuple[str, Tree]]:
    return ((name, entry) for name, entry in list(tree.items()) if isinstance(entry, dict))


def _section(tree: Mapping[str, object], name: str) -> Tree:
    """The section in place; a new one, which belongs to nothing, if there is none."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}
