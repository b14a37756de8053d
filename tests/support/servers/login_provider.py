"""A real OpenID Connect provider for people who sign in, on this machine."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence

from pilotage.service.auth.oidc.issuer import Issuer, RoleRule, SignIn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the library that it stands on
    import oidc_provider_mock

CLIENT = SignIn(client_id="pilotage", client_secret="not so secret", scopes=("openid", "profile"))


@contextlib.contextmanager
def provider(people: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A provider that knows these people with their groups, and its URL."""
    users = [oidc_provider_mock.User(sub=name, claims={"groups": groups}) for name, groups in people.items()]
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with oidc_provider_mock.run_server_in_thread(user_claims=users) as server:
            yield f"http://localhost:{server.server_port}"


def issuer_at(url: str, *rules: RoleRule) -> Issuer:
    return Issuer(
        name="CERN", url=url, audiences=frozenset({"nobody"}), vo="cms", rules=rules, sign_in=CLIENT
    )
