import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from joserfc import jwt as joserfc_jwt
from joserfc.jwk import KeySet

from cs_config.errors import ConfigError
from pilotage.service.auth import keys as auth_keys
from pilotage.service.auth.callers import grant
from pilotage.service.auth.keys import KeyFile, KeyRing
from pilotage.service.auth.oidc.issuers import Issuers
from pilotage.service.auth.tokens import Tokens, UnknownKey
from pilotage.service.http_errors import NotAuthenticated

NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
KEEP = timedelta(hours=6)
OPERATOR = grant(role="operator", user="root")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "key.pem"


def process(path: Path) -> Tokens:
    """What one process of the service has."""
    file = KeyFile(path)
    return Tokens(auth_keys.load_or_create(path), changed=file.changed)


def test_the_key_is_made_once_and_read_only_by_its_owner(path: Path):
    first = auth_keys.load_or_create(path)
    assert auth_keys.load_or_create(path).signing.key_id == first.signing.key_id
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["key.pem"]


@pytest.mark.parametrize("text", ["nonsense", ""])
def test_a_file_that_holds_no_key_is_named(path: Path, text: str):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"key\.pem"):
        auth_keys.load_or_create(path)


def test_a_damaged_earlier_key_is_told_and_not_left_out(path: Path):
    auth_keys.load_or_create(path)
    auth_keys.rotate(path, keep=KEEP, now=NOW)
    path.write_text(path.read_text().replace("# verifies until 2026", "# verifies until soon"))
    with pytest.raises(ConfigError, match=r"earlier key.*key\.pem"):
        auth_keys.load(path)


def test_tokens_of_the_earlier_key_stay_good_until_it_is_retired(path: Path):
    tokens = process(path)
    before, _ = tokens.mint(OPERATOR, now=NOW)
    auth_keys.rotate(path, keep=KEEP, now=NOW)
    assert tokens.refresh()
    assert tokens.verify(before, now=NOW + KEEP - timedelta(seconds=1)).expires_at == NOW + KEEP
    with pytest.raises(NotAuthenticated, match="its key was retired"):
        tokens.verify(before, now=NOW + KEEP)
    after, _ = tokens.mint(OPERATOR, now=NOW)
    assert tokens.verify(after, now=NOW + KEEP)


def test_the_bearer_of_a_token_of_a_retired_key_is_told_to_get_a_new_one(path: Path):
    token, _ = process(path).mint(OPERATOR, now=NOW)
    auth_keys.rotate(path, keep=timedelta(0), now=NOW)
    with pytest.raises(UnknownKey):
        process(path).verify(token, now=NOW)
    with pytest.raises(NotAuthenticated, match=r"it was retired.*get a new token"):
        Issuers().find(token)
    with pytest.raises(NotAuthenticated, match="not one of ours"):
        Issuers().find("nonsense")


def test_a_process_that_has_not_heard_of_a_new_key_takes_its_tokens_at_once(path: Path):
    one, other = process(path), process(path)
    auth_keys.rotate(path, keep=KEEP, now=NOW)
    assert one.refresh()
    token, _ = one.mint(OPERATOR, now=NOW)
    assert other.verify(token, now=NOW).caller.is_operator


def test_a_key_that_leaked_verifies_nothing_not_even_what_was_seen_before(path: Path):
    tokens = process(path)
    leaked = tokens.keys.signing.key_id
    token, _ = tokens.mint(OPERATOR, now=NOW)
    tokens.verify(token, now=NOW)
    auth_keys.rotate(path, keep=KEEP, now=NOW)
    assert auth_keys.retire(path, leaked, now=NOW) is not None
    tokens.refresh()
    with pytest.raises(NotAuthenticated, match="not one of ours"):
        tokens.verify(token, now=NOW)
    assert auth_keys.retire(path, leaked, now=NOW) is None


def test_each_rotation_drops_the_keys_that_are_over(path: Path):
    auth_keys.load_or_create(path)
    first = auth_keys.rotate(path, keep=KEEP, now=NOW)
    second = auth_keys.rotate(path, keep=KEEP, now=NOW + timedelta(hours=1))
    assert [key.key_id for key in second.retiring] == [
        first.signing.key_id,
        *(key.key_id for key in first.retiring),
    ]
    third = auth_keys.rotate(path, keep=timedelta(), now=NOW + timedelta(days=1))
    assert third.retiring == ()
    assert auth_keys.load(path).signing.key_id == third.signing.key_id


def test_a_change_of_the_file_that_cannot_be_read_changes_nothing(path: Path):
    tokens = process(path)
    token, _ = tokens.mint(OPERATOR, now=NOW)
    path.write_text("half a k")
    assert not tokens.refresh()
    assert tokens.verify(token, now=NOW)
    path.unlink()
    assert not tokens.refresh()
    assert tokens.verify(token, now=NOW)


def test_rotating_keeps_mode_and_leaves_nothing_beside_the_file(path: Path):
    auth_keys.load_or_create(path)
    path.chmod(0o640)
    auth_keys.rotate(path, keep=KEEP, now=NOW)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in path.parent.iterdir()] == ["key.pem"]


def test_what_is_published_verifies_our_tokens_and_says_nothing_private(path: Path):
    tokens = process(path)
    before, _ = tokens.mint(OPERATOR, now=NOW)
    auth_keys.rotate(path, keep=KEEP, now=NOW)
    tokens.refresh()
    after, _ = tokens.mint(OPERATOR, now=NOW)
    published = tokens.keys.published(now=NOW)
    keys = KeySet.import_key_set(published)  # type: ignore[arg-type]
    for token in (before, after):
        assert joserfc_jwt.decode(token, keys, algorithms=["ES256"]).claims["role"] == "operator"
    assert all("d" not in key for key in published["keys"])
    assert len(tokens.keys.published(now=NOW + KEEP)["keys"]) == 1


def test_a_token_of_the_new_key_is_taken_while_another_thread_reads_that_key(path: Path):
    ring = auth_keys.load_or_create(path)
    new = auth_keys.rotate(path, keep=KEEP, now=NOW)
    text, _ = Tokens(new).mint(OPERATOR, now=NOW)
    reading, may_end = threading.Event(), threading.Event()
    looks = iter([new])

    def changed() -> KeyRing | None:
        found = next(looks, None)
        if found is not None:
            reading.set()
            may_end.wait(300)
        return found

    tokens = Tokens(ring, changed=changed)
    with ThreadPoolExecutor() as threads:
        threads.submit(tokens.refresh)
        reading.wait(300)
        taken = threads.submit(tokens.verify, text, now=NOW)
        may_end.set()
        assert taken.result(300).caller.is_operator


def test_a_key_that_is_mounted_as_a_secret_is_read_only_and_followed(tmp_path: Path) -> None:
    """A link to a directory that is exchanged, as Kubernetes does; nothing beside it may be written."""
    versions = [tmp_path / name for name in ("first", "second")]
    for version in versions:
        version.mkdir()
        auth_keys.load_or_create(version / "signing-key.pem")
        (version / "signing-key.pem").chmod(0o400)
        version.chmod(0o500)
    mount = tmp_path / "secret"
    mount.symlink_to(versions[0])
    file = KeyFile(mount / "signing-key.pem")
    first = auth_keys.load_or_create(mount / "signing-key.pem")
    assert file.changed() is None
    (tmp_path / "next").symlink_to(versions[1])
    (tmp_path / "next").replace(mount)
    changed = file.changed()
    assert changed is not None
    assert changed.signing.public.public_numbers() != first.signing.public.public_numbers()
    for version in versions:
        version.chmod(0o700)
