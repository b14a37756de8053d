"""The one who follows tutorials: a wrong one is told with its file and line."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import readers, tutorials
from tests.support.documents.shell import Answer, Shell
from tests.support.documents.tutorials import TutorialFailed

RIGHT = """# A tutorial

```sh
mkdir words
```

Write `words/list.txt`:

```
one
two
```

```sh
cd words    # where it is
export COUNT=2 \\
    OTHER=3
```

```console
$ wc -l <list.txt
2
$ echo "$COUNT $OTHER"; date >&2
2 3
… 2…
$ for word in $(cat list.txt); do
>     echo "<  $word>"
> done
< one>
…
$ false
$ echo $?
1
```

Only shown, not done:

```
false
```
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with readers.at_home(tmp_path) as shell:
        yield shell


def follow(text: str, tmp_path: Path, **shells: Shell) -> int:
    document = tmp_path / "tutorial.md"
    document.write_text(text)
    return tutorials.follow(document, shells)


def test_what_a_tutorial_says_is_done_in_one_shell(tmp_path: Path, shell: Shell) -> None:
    assert follow(RIGHT, tmp_path, here=shell) == 8
    assert (tmp_path / "words" / "list.txt").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("right", "wrong", "line", "reason"),
    [
        ("<list.txt\n2", "<list.txt\n3", 21, "should say"),
        ("2 3\n…", "2 3\n", 23, "should say"),
        ("< one>\n…", "…\n< one>", 26, "should say"),
        ("$ false\n$ echo $?\n1\n", "$ false\n", 31, "ended with status 1"),
        ("cd words    #", "cd nowhere  #", 15, "ended with status 1"),
        ("$ false\n", "$ sleep 60\n", 31, "did not end in time"),
        ("`words/list.txt`", "`elsewhere/list.txt`", 10, "was not written"),
    ],
)
def test_a_wrong_tutorial_fails_with_its_line(
    tmp_path: Path,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    right: str,
    wrong: str,
    line: int,
    reason: str,
) -> None:
    run = Shell.run

    def run_impatiently(shell: Shell, command: str) -> Answer:
        monkeypatch.setattr("tests.support.documents.shell.PATIENCE", 1 if "sleep" in command else 600)
        return run(shell, command)

    monkeypatch.setattr(Shell, "run", run_impatiently)
    assert right in RIGHT
    with pytest.raises(TutorialFailed, match=rf"tutorial\.md:{line}: (.|\n)*{re.escape(reason)}"):
        follow(RIGHT.replace(right, wrong), tmp_path, here=shell)


def test_what_is_left_running_runs_until_the_end(tmp_path: Path) -> None:
    text = "In another terminal; leave it running:\n\n```console\n$ echo $$ up; exec sleep 600\n… up\n```\n"
    text += "\n```sh\necho up; sleep 601  # leave it running\necho still here >there\n```\n"
    with readers.at_home(tmp_path) as shell:
        assert follow(text, tmp_path, here=shell) == 3
    assert (tmp_path / "there").read_text() == "still here\n"


def test_what_should_go_on_and_ends_fails(tmp_path: Path, shell: Shell) -> None:
    with pytest.raises(TutorialFailed, match=r"tutorial\.md:2: (.|\n)*should go on running, and ended"):
        follow("```sh\nfalse  # leave it running\n```\n", tmp_path, here=shell)


def test_each_host_does_what_is_said_to_it(tmp_path: Path) -> None:
    for host in ("a", "b"):
        (tmp_path / host).mkdir()
    text = "On **a**:\n\n```sh\ntouch one\n```\n\n```sh\ntouch two\n```\n\n"
    text += "On **b** and **a**:\n\n```sh\ntouch three\n```\n"
    with readers.at_home(tmp_path / "a") as a, readers.at_home(tmp_path / "b") as b:
        assert follow(text, tmp_path, a=a, b=b) == 4
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"one", "two", "three"}
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"three"}
