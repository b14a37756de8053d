"""Settings of web hooks."""

from pydantic import BaseModel, Field

from pilotage.cli.settings import Networks

_MAIL_SERVER = r"^smtps?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"


class HookSettings(BaseModel):
    """Where messages of web hooks may be sent, and how those by e-mail are."""

    web_hook_networks: Networks = ()
    """Networks that web hooks may reach beside the internet, also without TLS."""
    web_hook_refused_networks: Networks = ()
    """Networks that web hooks may not reach, though public or allowed."""
    mail_server: str | None = Field(default=None, pattern=_MAIL_SERVER)
    """Server of the e-mail of web hooks, such as smtp://localhost; without it they send none."""
    mail_from: str = Field(default="pilotage@localhost", pattern=r"^[^@\s<>,]+@[^@\s<>,]+$")
    """Sender of the e-mail of web hooks."""
