"""Lists mean the same for every keyword, in every form of a description and at DIRAC's services."""

import json
from collections.abc import Iterable, Mapping
from itertools import product

import pytest

from cs_config import validate
from cs_config.options import keywords
from cs_config.options.keywords import Keyword
from optimizers.description import description as descriptions
from optimizers.submit.checking import Source, check_sources
from optimizers.submit.submitter import Submitter
from tests.support.left_out import is_there

#: With defaults of what a job must state beside `CPUFeatures`.
CONFIG = validate.parse(
    """
Registry: {VO: {cms: {}}}
Operations: {Defaults: {JobDescription: {Architecture: {default: x86_64}, WallTime: {default: 100}}}}
""",
    version=1,
)
ANN = Submitter(subject="user:ann", vo="cms", owner="ann", owner_group="cms_user")
SANDBOX = f"sha256:{'0' * 64}"

#: Commas stand within rules, which have a test of their own.
RULES = (keywords.retry, keywords.relax)
LISTS = [each for each in keywords.KEYWORDS if each.is_list and each.read not in RULES]
#: Members of a list by the reader of its keyword, and one with a comma in it; names have none.
MEMBERS = {
    keywords.texts: ("a", "b", "c,d"),
    keywords.names: ("A.b.ch", "C.d.fr", None),
    keywords.parents: ("12", "merge-step", "c,d"),
    keywords.logical_names: ("/cms/1", "/cms/2", "/cms/3,4"),
    keywords.environment: ("A=1", "B=2", "C=3,4"),
}
#: Forms of a keyword whose value is one text, and of one whose value is a list, in a description.
TEXT_FORMS = {
    "JDL": '[ Executable = "x"; {name} = "{text}"; ]',
    "YAML": "Executable: x\n{name}: {text}\n",
    "JSON": '{{"Executable": "x", "{name}": "{text}"}}',
    "CFG": "Executable = x\n{name} = {text}\n",
    "HTTP": {"{name}": "{text}"},
    "DIRAC": 'Executable = x; {name} = "{text}";',
    "DIRAC without quotes": "Executable = x; {name} = {text}",
}
LIST_FORMS = {
    "JDL": '[ Executable = "x"; {name} = {{{items}}}; ]',
    "YAML": "Executable: x\n{name}: [{items}]\n",
    "JSON": '{{"Executable": "x", "{name}": [{items}]}}',
    "CFG": "Executable = x\n{name} = {items}\n",
    "HTTP": {"{name}": "[{items}]"},
    "DIRAC": "Executable = x; {name} = {{{items}}};",
}
#: Forms of a parametric job whose values are lists, the second one of one item.
PARAMETRIC_FORMS = {
    "JDL": '[ Executable = "x"; Parameters.P = {{{one}, {{"{three}"}}}}; {name} = {value}; ]',
    "YAML": 'Executable: x\nParameters.P: [[{items}], ["{three}"]]\n{name}: {value}\n',
    "JSON": '{{"Executable": "x", "Parameters.P": [[{items}], ["{three}"]], "{name}": {value}}}',
    "DIRAC": 'Executable = x; Parameters.P = {{{one}, {{"{three}"}}}}; {name} = {value};',
    "DIRAC without quotes": (
        "Executable = x; Parameters = 2; Parameters.P = {{{bare}, {{{three}}}}}; {name} = %(P)s;"
    ),
}


_NOT_DIRACS = ("InputSandbox", "JobPath", "CPUFeatures", "After")


def pair(forms: Iterable[str]) -> list[tuple[str, Keyword]]:
    """Each form with each keyword; DIRAC's clients send the files of sandboxes, and DIRAC lacks three."""
    present = [form for form in forms if is_there("dirac") or not form.startswith("DIRAC")]
    return [
        (form, keyword)
        for form, keyword in product(present, LISTS)
        if not (form.startswith("DIRAC") and keyword.name in _NOT_DIRACS)
    ]


def name(value: object) -> str | None:
    """The name of a parameter of a test."""
    return value.name if isinstance(value, Keyword) else None


def stored(source: Source, *, is_of_dirac: bool = False) -> list[dict[str, object]]:
    """The descriptions of the jobs of a source, as they are stored."""
    if is_of_dirac:
        from pilotage.plugins.dirac import dialect

        source = dialect.read_jdl(str(source))
    made = check_sources(CONFIG, ANN, [source], sandbox=SANDBOX)
    members = (member for checked in made for member in checked.submitted.members)
    return [descriptions.stored_body(member.whole) for member in members]


def as_stored(keyword: Keyword, *members: str) -> object:
    """A list as it is stored."""
    if keyword.read is keywords.environment:
        return dict(member.split("=") for member in members)
    return list(members)


def write(form: str | Mapping[str, str], **values: str) -> Source:
    """A description in a form."""
    if isinstance(form, str):
        return form.format(**values)
    [(name, value)] = form.items()
    filled = value.format(**values)
    read = json.loads(filled) if filled.startswith("[") else filled
    return {"Executable": "x", name.format(**values): read}


@pytest.mark.parametrize(("form", "keyword"), pair(TEXT_FORMS), ids=name)
def test_one_text_is_a_list_of_what_its_commas_separate(form: str, keyword: Keyword) -> None:
    is_of_dirac = form.startswith("DIRAC")
    one, two, _ = MEMBERS[keyword.read]
    for text in (f"{one}, {two}", f"{one},{two}", f" {one} , {two} "):
        [body] = stored(write(TEXT_FORMS[form], name=keyword.name, text=text), is_of_dirac=is_of_dirac)
        assert body[keyword.name] == as_stored(keyword, one, two), text


@pytest.mark.parametrize(("form", "keyword"), pair(LIST_FORMS), ids=name)
def test_a_member_of_a_list_is_kept_whole(form: str, keyword: Keyword) -> None:
    members = [member for member in MEMBERS[keyword.read] if member is not None]
    for some in (members, members[-1:]):
        items = ", ".join(f'"{member}"' for member in some)
        source = write(LIST_FORMS[form], name=keyword.name, items=items)
        [body] = stored(source, is_of_dirac=form == "DIRAC")
        assert body[keyword.name] == as_stored(keyword, *some)


@pytest.mark.parametrize(
    "text",
    [
        '[ Executable = "x"; Retry = {"137: Memory x 2, twice", "65: another site"}; ]',
        '[ Executable = "x"; Retry = "137: Memory x 2, twice; 65: another site"; ]',
        "Executable: x\nRetry:\n  137: Memory x 2, twice\n  65: another site\n",
        'Executable: x\nRetry: ["137: Memory x 2, twice", "65: another site"]\n',
        '{"Executable": "x", "Retry": {"137": "Memory x 2, twice", "65": "another site"}}',
    ],
)
def test_rules_of_retry_keep_their_commas(text: str) -> None:
    assert [body["Retry"] for body in stored(text)] == [["137: Memory x 2, twice", "65: another site"]]


@pytest.mark.parametrize("is_in_list", [False, True], ids=["whole", "in a list"])
@pytest.mark.parametrize(("form", "keyword"), pair(PARAMETRIC_FORMS), ids=name)
def test_each_job_of_a_parametric_one_has_its_own_list(form: str, keyword: Keyword, is_in_list: bool) -> None:
    one, two, _ = MEMBERS[keyword.read]
    three = {"A.b.ch": "E.f.de", "/cms/1": "/cms/5", "A=1": "D=4"}.get(one, "e")
    items = f'"{one}", "{two}"'
    begin, end = "[]" if form in ("YAML", "JSON") else "{}"
    text = PARAMETRIC_FORMS[form].format(
        name=keyword.name,
        value=f'{begin}"%(P)s"{end}' if is_in_list else '"%(P)s"',
        items=items,
        one=f"{{{items}}}",
        bare=f"{{{one},\n {two}}}",
        three=three,
    )
    found = [body[keyword.name] for body in stored(text, is_of_dirac=form.startswith("DIRAC"))]
    assert found == [as_stored(keyword, one, two), as_stored(keyword, three)]


def test_items_of_a_list_join_those_of_the_list_that_has_its_placeholder() -> None:
    text = "Executable: x\nOutputSandbox: [log, '%s']\nArguments: -f %s\nParameters: [[a, b], c, []]\n"
    found = [(body["OutputSandbox"], body["Arguments"]) for body in stored(text)]
    assert found == [(["log", "a", "b"], "-f {a,b}"), (["log", "c"], "-f c"), (["log"], "-f {}")]


def test_a_comma_that_no_name_follows_is_part_of_a_variable() -> None:
    [body] = stored("Executable: x\nEnvironment: 'OPTIONS=a,b, C=5'\n")
    assert body["ExecutionEnvironment"] == {"OPTIONS": "a,b", "C": "5"}
    [body] = stored(
        "Executable: x\nEnvironment: 'OPTS=-agentlib:jdwp=transport=socket,server=y,suspend=n,B=1'\n"
    )
    options = "-agentlib:jdwp=transport=socket,server=y,suspend=n"
    assert body["ExecutionEnvironment"] == {"OPTS": options, "B": "1"}


def test_jobs_with_lists_of_their_own_are_stored_without_the_lists_of_all() -> None:
    text = "Executable: x\nInputData: '%s'\nParameters: [[/cms/1, /cms/2], [/cms/3]]\n"
    made = check_sources(CONFIG, ANN, [text])
    assert [each.submitted.is_own for each in made] == [True, True]
    assert [each.submitted.body["InputData"] for each in made] == [["/cms/1", "/cms/2"], ["/cms/3"]]
