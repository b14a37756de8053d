"""Formats of other systems: importers, `pilotage config import` and `export`, `job import`, `usage`."""

from pilotage.extensions import CommandGroup, Plugin

PLUGIN = Plugin(
    package=__name__,
    commands={
        "usage": CommandGroup(
            "Write usage records of a site for APEL.",
            {"records": "usage_commands:records"},
            package=__name__,
        )
    },
    subgroups={
        "config import": CommandGroup(
            "Import configurations of other systems.",
            {
                "classad": "commands:import_classad",
                "dirac": "commands:import_dirac",
                "osg": "commands:import_osg",
            },
            ("pilotage.formats", "commands:make_import"),
            package=__name__,
        ),
        "job import": CommandGroup(
            "Translate job descriptions of other systems.",
            {"htcondor": "job_commands:import_htcondor", "sbatch": "job_commands:import_sbatch"},
            package=__name__,
        ),
        "config export": CommandGroup(
            "Export the configuration to formats of other systems.",
            {"classad": "commands:export_classad", "dirac": "commands:export_dirac"},
            package=__name__,
        ),
    },
)
