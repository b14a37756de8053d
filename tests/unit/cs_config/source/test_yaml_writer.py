"""A changed tree changes the lines of its text that say so, and no others."""

from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.source import yaml_writer

TEXT = """\
# the grid
Resources:
  Sites:
    A:
      # our first site
      Country: it
      CEs:
        ce:
          Queues:
            long:   # the long one
              MaxRAM: 4000   # MB
              Tag:
                - Big   # and slow
                - Old

              Note: |
                two
                lines

            # nobody uses it
            short:
Operations:  # for all
  Defaults: {Pools: {GraceTime: 60}}
"""
LONG = "              "


def tree(text: str = TEXT) -> dict:  # type: ignore[type-arg]
    return dict(validate.parse(text).tree)


def edited(text: str = TEXT, **settings: object) -> str:
    """The text with other parameters of the queue `long`; None takes one away."""
    after = tree(text)
    queue = after["Resources"]["Sites"]["A"]["CEs"]["ce"]["Queues"]["long"]
    for name, value in settings.items():
        queue.pop(name) if value is None else queue.update({name: value})
    changed = yaml_writer.edit_text(text, tree(text), after)
    assert tree(changed) == after
    return changed


def test_a_value_changes_in_its_place_and_its_comment_stays() -> None:
    assert edited(MaxRAM=5000) == TEXT.replace("MaxRAM: 4000   # MB", "MaxRAM: 5000   # MB")
    assert "              Note: one\n            # nobody uses it\n" in edited(Note="one")


def test_new_parameters_stand_behind_the_others() -> None:
    text = edited(FreeCPUs=4, Mark=["a", "b"])
    added = f"{LONG}FreeCPUs: 4\n{LONG}Mark:\n{LONG}- a\n{LONG}- b\n"
    assert text.replace(added, "") == TEXT
    assert text.index("lines") < text.index("FreeCPUs") < text.index("# nobody")


def test_what_is_taken_away_takes_its_lines_with_it() -> None:
    gone = f"{LONG}Tag:\n{LONG}  - Big   # and slow\n{LONG}  - Old\n"
    assert edited(Tag=None) == TEXT.replace(gone, "")


def test_new_queues_and_sites_come_in_at_their_level() -> None:
    after = tree()
    after["Resources"]["Sites"]["A"]["CEs"]["ce"]["Queues"]["new"] = {"MaxRAM": 1}
    after["Resources"]["Sites"]["B"] = {"CEs": {"x": {"Queues": {"q": {"MaxRAM": 2}}}}}
    text = yaml_writer.edit_text(TEXT, tree(), after)
    assert tree(text) == after
    assert "            short:\n            new:\n              MaxRAM: 1\n    B:\n      CEs:\n" in text
    assert all(line in text.splitlines() for line in TEXT.splitlines())


def test_what_comes_in_before_a_line_that_changes_does_not_disturb_it() -> None:
    text = "Resources:\n  Sites:\n    A:\n      Country: it\n    B:  # the second\n      Country: fr\n"
    after = tree(text)
    after["Resources"]["Sites"]["A"]["Mark"] = 1
    after["Resources"]["Sites"]["B"] = None
    changed = yaml_writer.edit_text(text, tree(text), after)
    assert changed == "Resources:\n  Sites:\n    A:\n      Country: it\n      Mark: 1\n    B: null\n"


def test_a_queue_without_anything_gets_a_section() -> None:
    after = tree()
    after["Resources"]["Sites"]["A"]["CEs"]["ce"]["Queues"]["short"] = {"MaxRAM": 1}
    text = yaml_writer.edit_text(TEXT, tree(), after)
    assert "            # nobody uses it\n            short:\n              MaxRAM: 1\nOperations:" in text


def test_a_text_in_braces_is_written_anew() -> None:
    text = "Resources: {Sites: {A: {CEs: {ce: {Queues: {long: {MaxRAM: 1, x: 2}}}}}}}  # one line\n"
    after = edited(text, MaxRAM=5, x=None)
    assert after.splitlines()[-1].strip() == "MaxRAM: 5"


VALUES = st.one_of(
    st.integers(-9, 9),
    st.booleans(),
    st.text("ab:#'\n-", max_size=5),
    st.lists(st.text("a,]", max_size=2), max_size=2),
)
SETTINGS = st.dictionaries(st.sampled_from(["one", "two", "three", "four"]), VALUES, max_size=4)


@given(SETTINGS, SETTINGS)
def test_the_text_says_the_tree_whatever_changes(old: dict[str, object], new: dict[str, object]) -> None:
    def whole(settings: dict[str, object]) -> dict[str, object]:
        queues = {"a": settings or None, "b": {"z": 1}}
        return {"Resources": {"Sites": {"S": {"CEs": {"C": {"Queues": queues}}}}}}

    text = yaml_writer.to_yaml(whole(old))
    before, after = tree(text), tree(yaml_writer.to_yaml(whole(new)))
    assert repr(sorted(str(tree(yaml_writer.edit_text(text, before, after))))) == repr(sorted(str(after)))
