"""The web pages, one file a noun: they translate what the interface says, and decide nothing."""

from pilotage.service.pages import issuer_login, login, overview

#: The pages; the navigation shows those that want to be in it in this order.
ROUTERS = (
    overview.router,
    login.router,
    issuer_login.router,
)
