"""The page of the configuration: the tree, a draft of a change, what it would do, the versions."""

from pilotage.service.pages.configuration import changing, history, showing

ROUTERS = (showing.router, changing.router, history.router)
