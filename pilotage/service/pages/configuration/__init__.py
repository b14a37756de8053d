"""Configuration pages: the tree, drafts of changes, their previews, versions."""

from pilotage.service.pages.configuration import changing, history, view

ROUTERS = (view.show_router, changing.router, history.router)
