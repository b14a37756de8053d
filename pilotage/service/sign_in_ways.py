"""The ways to sign in to the pages that an installation has beside the one-time link."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInWay:
    """A button of the login page."""

    title: str  #: what stands on it, e.g. the name of the issuer
    path: str  #: of this service, where signing in begins; `next` is added to its query
