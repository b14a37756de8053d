"""The next release, made of this one: a migration, and a state, class, option and answer that are new."""

import shutil
from pathlib import Path

_PROJECT = Path(__file__).parents[3]
_PACKAGES = ("agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue")
#: Jobs of this type wait once in its new state; those of the other have its new requirement.
PARKED, DEMANDING = "User", "Slow"
OPTION = "Operations/Defaults/JobScheduling/LaterOption"

_MIGRATION = '''"""A column and a table of the next release."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{new}", "{old}", None, None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("later_fact", sa.Text(), server_default="later"))
    op.add_column("attempts", sa.Column("later_count", sa.Integer(), nullable=False, server_default="0"))
    op.create_table("of_the_next_release", sa.Column("id", sa.Integer(), primary_key=True))
'''
#: File, what it has, and what stands there in the next release.
_CHANGES = (
    (
        "requirements/states.py",
        '    SCOUTING = "Scouting"',
        '    PARKED = "Parked"\n    SCOUTING = "Scouting"',
    ),
    ("requirements/states.py", "S.RECEIVED: frozenset({", "S.RECEIVED: frozenset({S.PARKED, "),
    (
        "requirements/states.py",
        "    S.CHECKING: frozenset({",
        (
            "    S.PARKED: frozenset({S.CHECKING, S.WAITING, S.RESCHEDULED, S.FAILED, S.KILLED}),\n"
            "    S.CHECKING: frozenset({S.PARKED, "
        ),
    ),
    ("requirements/states.py", "S.RESCHEDULED: frozenset({", "S.RESCHEDULED: frozenset({S.PARKED, "),
    ("requirements/states.py", "PREPARING = frozenset({", "PREPARING = frozenset({S.PARKED, "),
    (
        "optimizers/chain/batch.py",
        "status=JobStatus.CHECKING,",
        'status=JobStatus.PARKED if outcome.reason == "parked" else JobStatus.CHECKING,',
    ),
    (
        "optimizers/steps/job_path.py",
        "    if candidate.config_fault is not None:",
        (
            f'    if candidate.description.job_type == "{PARKED}" and candidate.held_by is None:\n'
            '        return Hold(reason="parked")\n'
            "    if candidate.config_fault is not None:"
        ),
    ),
    (
        "requirements/requirement_class.py",
        "    gpus_max: int | None = None",
        "    later_need: int = 0\n    gpus_max: int | None = None",
    ),
    (
        "taskqueue/task_queues/class_derivation.py",
        '        "whole_node": cores.whole_node,\n',
        f'''\
        "later_need": int(asked.job_type == "{DEMANDING}"),
        "whole_node": cores.whole_node,
''',
    ),
    ("cs_config/classes/queue_classes.py", "ALGORITHM: Final = 2", "ALGORITHM: Final = 3"),
    (
        "cs_config/options/options.py",
        "    narrow_sites: bool = False\n",
        '    later_option: bool = False\n    """Of the next release."""\n    narrow_sites: bool = False\n',
    ),
    (
        "pilotage/service/routes/leases.py",
        "    heartbeat_seconds: float | None = Field(",
        '    later_word: str = "later"\n    heartbeat_seconds: float | None = Field(',
    ),
)


def make(directory: Path) -> Path:
    """Make it in `directory`, to be the first of `PYTHONPATH`."""
    for package in _PACKAGES:
        shutil.copytree(_PROJECT / package, directory / package)  # with what is compiled
    versions = directory / "taskqueue/migrations/versions"
    old = max(file.name[:4] for file in versions.glob("[0-9]*.py"))
    new = f"{int(old) + 1:04d}"
    (versions / f"{new}_next_release.py").write_text(_MIGRATION.format(new=new, old=old))
    for name, old, new in _CHANGES:
        file = directory / name
        text = file.read_text()
        assert old in text, f"{name} has no {old!r} any more"
        file.write_text(text.replace(old, new, 1))
    return directory
