"""DIRAC's own services for its genuine clients: translates between DIRAC's wire and the packages below."""

from pilotage.extensions import Command, Plugin

PLUGIN = Plugin(
    package=__name__,
    commands={
        "dirac-door": Command(
            "command:dirac_door",
            "Serve unmodified clients, pilots and directors of DIRAC, with certificates and proxies.",
            package=__name__,
        ),
        "dirac-document": Command(
            "command:dirac_document",
            "Translate a JDL of DIRAC or DiracX into a document of the match-making specification, or back.",
            package=__name__,
        ),
        "dirac-history": Command(
            "command:dirac_history",
            "Write the numbers of all jobs as WMSHistory records, as DIRAC's StatesAccountingAgent does.",
            package=__name__,
        ),
    },
)
