"""The page of the configuration: the tree, a draft of a change, what it would do, the versions."""

from pilotage.service.pages.configuration import changing, history, view

ROUTERS = (view.show_router, changing.router, history.router)
