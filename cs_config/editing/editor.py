"""The configuration for one author: read, proposed, compared, stored, with the author's rights.

Slow work is done outside of transactions. If another version is stored meanwhile, it is proposed again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cs_config.editing import permissions, proposals, reverts
from cs_config.editing.patch import Edit
from cs_config.editing.permissions import EditNotAllowed, Rights
from cs_config.editing.proposals import ConfigDraft, Proposal
from cs_config.editing.reverts import Revert
from cs_config.errors import ConfigError, EditConflict, VersionConflict
from cs_config.source import diff
from cs_config.source.diff import ABSENT, Difference
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from cs_config.versions.store import LiveConfiguration
from requirements.errors import InvalidRequest, NotAllowed, Problem, require_text

#: Retries while others store versions.
_TRIES = 10

#: Raises for a proposal that is not to be stored.
ProposalCheck = Callable[[Proposal], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """Transactions of the database in which versions are stored; `taskqueue.db.database` has them."""

    reading: Callable[[], AbstractContextManager[Connection]]
    writing: Callable[[], AbstractContextManager[Connection]]
    #: For what is done after a commit: its errors are logged only.
    after_commit: Callable[[str], AbstractContextManager[None]]
    read_time: Callable[[Connection], datetime]  #: time of the database


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChange:
    """The version in force after a change, and what changed."""

    version: int
    differences: tuple[Difference, ...]
    message: str  #: in the history
    is_new: bool = True  #: False: the draft changes nothing, and nothing was stored
    reverts_at: datetime | None = None  #: of temporary values, the first of them
    warnings: tuple[Problem, ...] = ()  #: new ones that the author may see


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEditor:
    """Reads and changes the configuration with the rights of one author."""

    transactions: Transactions
    live: LiveConfiguration
    clock: Callable[[], datetime]
    author: str  #: name in the history
    rights: Rights
    audit: Callable[[StoredChange], None]
    #: Counts a change that the author wants to store; raises if there are too many.
    count_change: Callable[[], None]

    def read(self, *, in_force: bool = False) -> Configuration:
        """The newest readable version, as written or (`in_force`) without expired values."""
        with self.transactions.reading() as conn:
            self.live.refresh(conn)  # a change based on this answer should not conflict with a known version
        current = self.live.current
        return current if in_force else current.written or current

    def read_newest(self) -> Configuration:
        """The newest version; `ConfigError` if this release cannot read it."""
        known = self.read()
        if self.live.problem is None:
            return known
        with self.transactions.reading() as conn:
            return store.load_version(conn)

    def visible_tree(self, config: Configuration) -> Mapping[str, object]:
        """The tree without the parts of other VOs."""
        return permissions.visible_tree(config, self.rights)

    def visible_problems(self, problems: Iterable[Problem], config: Configuration) -> tuple[Problem, ...]:
        """The problems at paths that the author may see."""
        sees = self.rights.sees_path
        return tuple(each for each in problems if sees(config, tuple(each.path.split("/"))))

    def propose(self, draft: ConfigDraft) -> Proposal:
        """Apply a draft without storing it; a return to a version is limited to what the author may change.

        Raises:
            NotAllowed: The author may not change all of that.
            PathNotFound, VersionNotFound: A path to remove, or the version to restore, does not exist.
            VersionConflict: The same paths, of a whole text any, were changed meanwhile; or the draft's
                version does not exist yet.
            ConfigError: The text cannot be read, or the result is invalid.
        """
        self._require_rights(draft)
        current = self.read_newest()
        if not draft.is_whole:
            return self._propose_edits(draft, current)
        if draft.version is not None and draft.version != current.version:
            raise self._conflict(draft.version, current)
        if draft.restored is None:
            file = current.file if draft.file is None else draft.file
            return proposals.propose_text(current, draft.text or "", file)
        with self.transactions.reading() as conn:
            older = store.load_version(conn, draft.restored)
        return proposals.propose_rollback(current, older, self.rights)

    def _require_rights(self, draft: ConfigDraft) -> None:
        if draft.is_whole and draft.restored is None and not self.rights.everything:
            raise NotAllowed(f"a whole configuration is for operators; {self.rights.allowed}")

    def _propose_edits(self, draft: ConfigDraft, current: Configuration) -> Proposal:
        base = self._read_base(draft.version, current)
        edits = proposals.list_edits(draft, base, self.rights)
        try:
            return self._propose_within_limits(base, current, edits)
        except ConfigError as error:
            # The edits may cause problems at paths of others.
            shown = self.visible_problems(error.problems, current)
            message = "others depend on what this removes"
            raise ConfigError(shown or (Problem(path="/", message=message),)) from None

    def _propose_within_limits(
        self, base: Configuration, current: Configuration, edits: Sequence[Edit]
    ) -> Proposal:
        """Propose edits; what the author lowered for a time may be raised up to the value that comes back."""
        try:
            return proposals.propose_edits(base, current, edits, self.rights)
        except EditNotAllowed:
            returning = self._read_returning(current)
            if returning is None:
                raise
            rights = replace(self.rights, returning=returning)
            return proposals.propose_edits(base, current, edits, rights)

    def _read_returning(self, current: Configuration) -> Configuration | None:
        """The configuration with what comes back of the author's temporary values; None: nothing does."""
        with self.transactions.reading() as conn:
            found = reverts.list_own_returns(conn, current.tree, self.author, self.rights)
        return _bring_back(current, found)

    def _require_time_of_others(self, proposal: Proposal, lasting: timedelta | None) -> None:
        """Refuse what is beyond limits that come back before it ends.

        Else a VO would keep for good what others gave it for hours, by lowering it a little.
        """
        if self.rights.everything:
            return
        before, changed = proposal.before, proposal.differences
        with self.transactions.reading() as conn:
            due = self._due(conn, lasting)
            found = reverts.list_returns_of_others(conn, before.tree, self.author, self.rights, due)
        found = [each for each in found if any(_is_around(each.names, of.names) for of in changed)]
        if (returned := _bring_back(before, found)) is None:
            return
        changed = tuple(of for of in changed if any(_is_around(each.names, of.names) for each in found))
        advice = "others have set more for a time only: set it for a shorter time, or an operator may set it"
        permissions.check_change(
            returned, self.rights, proposal.after.tree, changed, restoring=True, advice=advice
        )

    def _read_base(self, number: int | None, current: Configuration) -> Configuration:
        """The version that a draft starts from."""
        if number is None or number == current.version:
            return current
        if number > current.version:
            raise VersionConflict(expected=number, current=current.version)
        if number == 0:
            return store.NOTHING
        with self.transactions.reading() as conn:
            return store.load_version(conn, number)

    def _conflict(self, expected: int, current: Configuration) -> VersionConflict:
        """The conflict of a late change, with the differences that the author may see."""
        try:
            base = self._read_base(expected, current)
        except (VersionConflict, ConfigError):
            return VersionConflict(expected=expected, current=current.version)
        found = diff.compare(self.visible_tree(base), self.visible_tree(current))
        return EditConflict(expected=expected, current=current.version, conflicts=found)

    def rebase(self, version: int, names: tuple[str, ...], text: str | None) -> tuple[int, str | None]:
        """Move a draft (its text, if it has one) onto the version in force, which is returned with it.

        At paths changed by others too, the draft wins.
        """
        current = self.read_newest()
        if text is None:
            return current.version, None
        draft = ConfigDraft(version=version, names=names, text=text)
        self._require_rights(draft)
        base = self._read_base(version, current)
        return current.version, proposals.rebase_text(draft, base, current, self.rights)

    def store(
        self,
        draft: ConfigDraft,
        *,
        message: str,
        check: ProposalCheck | None = None,
        lasting: timedelta | None = None,
    ) -> StoredChange:
        """Store a draft as the version in force; concurrent changes of other paths are kept.

        `check` is called with the proposal before it is stored.
        `lasting`: an agent restores the values after that time. A draft of values that are in force already
        only moves the time at which they are reverted, or keeps them; those of an author with further rights
        stay as they are.
        A text of a named file is stored even if nothing changes: its next import looks for that version.
        The message of a return to a version names that version; an empty one states no reason.

        Raises:
            InvalidRequest: The message is blank; too many values of this author are temporary; or the draft
                has a check or a time, and replaces a version that this release cannot read.

        Further errors are those of `propose` and of the check.
        """
        message = require_text("message", message) if message else ""
        self.count_change()
        if draft.restored is not None:
            message = ": ".join(filter(None, (f"back to version {draft.restored}", message)))
        if draft.file is not None or (draft.restored is not None and self.rights.everything):
            try:
                self.read_newest()
            except ConfigError as error:
                if check is not None or lasting is not None:
                    raise self._nothing_to_compare(error) from None
                return self._replace_unreadable(draft, error, message=message)
        for left in reversed(range(_TRIES)):
            proposal = self.propose(draft)
            if proposal.after.source == proposal.before.source and draft.file is None:
                return self._keep(draft, proposal.before.version, message, lasting)
            self._require_time_of_others(proposal, lasting)
            try:
                return self._store(draft, proposal, message=message, check=check, lasting=lasting)
            except VersionConflict:
                if not left:
                    raise
        raise AssertionError("not reached")

    def _keep(
        self, draft: ConfigDraft, version: int, message: str, lasting: timedelta | None
    ) -> StoredChange:
        """Move or cancel the reverts of values that are in force already."""
        with self.transactions.writing() as conn:
            paths = (edit.path for edit in draft.edits)
            reverts_at = reverts.set_due(conn, paths, self._due(conn, lasting), self.author, self.rights)
        return StoredChange(
            version=version, differences=(), message=message, is_new=False, reverts_at=reverts_at
        )

    def _due(self, conn: Connection, lasting: timedelta | None) -> datetime | None:
        return None if lasting is None else self.transactions.read_time(conn) + lasting

    def _store(
        self,
        draft: ConfigDraft,
        proposal: Proposal,
        *,
        message: str,
        check: ProposalCheck | None,
        lasting: timedelta | None,
    ) -> StoredChange:
        if check is not None:
            check(proposal)
        warnings = self.visible_problems(proposal.warnings, proposal.after)
        with self.transactions.writing() as conn:
            earlier = reverts.list_reverts(conn)
            number = store.store_checked(
                conn,
                proposal.after,
                author=self.author,
                message=message,
                expected=proposal.before.version,
                now=self.clock(),
                changed=diff.list_paths(proposal.differences),
            )
            # Those of values that change are deleted now; the others of the draft are moved or kept too.
            due, paths = self._due(conn, lasting), (edit.path for edit in draft.edits)
            reverts_at = reverts.set_due(conn, paths, due, self.author, self.rights)
            added = None
            if due is not None:
                added = reverts.add(
                    conn, proposal, earlier, version=number, due=due, author=self.author, rights=self.rights
                )
            elif draft.restored is not None:
                added = reverts.resume(conn, proposal.after.tree, earlier, version=draft.restored)
            reverts_at = min(filter(None, (reverts_at, added)), default=None)
        change = StoredChange(
            version=number,
            differences=proposal.differences,
            message=message,
            reverts_at=reverts_at,
            warnings=warnings,
        )
        return self._finish(change, proposal.after.stored_as(number, self.author))

    def _nothing_to_compare(self, error: ConfigError) -> InvalidRequest:
        """The error for a check, or a time limit, of a change that replaces an unreadable version."""
        problem = (
            f"the newest version cannot be read by this release ({error}), so nothing can be compared with"
            " it, and no value of it restored: leave out guard and revert_after, or send the change to a"
            " service of the release that stored it"
        )
        return InvalidRequest([Problem(path="guard", message=problem)])

    def _replace_unreadable(self, draft: ConfigDraft, error: ConfigError, *, message: str) -> StoredChange:
        """Replace a version that this release cannot read: nothing can be compared with it.

        Who returns to an earlier version, or states none, need not have seen that one.
        """
        self._require_rights(draft)
        text = draft.text or ""
        with self.transactions.reading() as conn:
            newest = store.current_version(conn)
            if draft.restored is not None:
                text = store.load_version(conn, draft.restored).source
        seen = (newest,) if draft.restored is None else (newest, self.live.current.version)
        if draft.version is not None and draft.version not in seen:
            cure = (
                "return to an earlier version, or send the change to a service of the release that stored it"
            )
            unreadable = f"version {newest} is in force, which this release cannot read ({error}): {cure}"
            raise ConfigError([Problem(path="/", message=unreadable)])
        with self.transactions.writing() as conn:
            number = store.store_text(
                conn,
                text,
                author=self.author,
                message=message,
                source=draft.file or proposals.API,
                expected=newest,
                now=self.clock(),
            )
        return self._finish(StoredChange(version=number, differences=(), message=message))

    def _finish(self, change: StoredChange, stored: Configuration | None = None) -> StoredChange:
        with self.transactions.after_commit(f"audit version {change.version} of the configuration"):
            self.audit(change)
        read = self.transactions.after_commit(f"read version {change.version} of the configuration")
        with read, self.transactions.reading() as conn:
            self.live.refresh(conn, stored)
        return change

    def switch_queue(self, address: QueueAddress, *, drained: bool, message: str = "") -> StoredChange:
        """Drain a queue for all VOs by `Enabled: false`, or remove that: running jobs go on to their end.

        `PathNotFound` if it is to be resumed and is not drained.
        """
        current = self.read_newest()
        edit = Edit(names=_enabled_path(current.require(address)), value=False if drained else ABSENT)
        return self.store(
            ConfigDraft(version=current.version, edits=(edit,)),
            message=message or f"{'drain' if drained else 'resume'} {address}",
        )

    def may_switch(self, address: QueueAddress) -> bool:
        """Whether the author may drain the queue."""
        return self.rights.may_change(_enabled_path(address))


def _bring_back(current: Configuration, values: Sequence[Revert]) -> Configuration | None:
    """The configuration with what was before temporary values; None: there are none, or it does not fit."""
    if not values:
        return None
    back = reverts.list_edits(current.tree, values)
    try:
        return proposals.propose_edits(current, current, back, Rights(everything=True), restoring=True).after
    except ConfigError:  # the values before do not fit any more
        return None


def _is_around(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one of two paths, spelled as in the tree, is the other or is around it."""
    return all(mine == its for mine, its in zip(one, other, strict=False))


_ENABLED = "Enabled"


def is_drained(config: Configuration, address: QueueAddress) -> bool:
    """Whether the queue itself is disabled, whatever its site or CE."""
    own = config.levels[address][-1].plain.get(_ENABLED.lower())
    return own is not None and own.value is False


def _enabled_path(address: QueueAddress) -> tuple[str, ...]:
    return ("Resources", "Sites", address.site, "CEs", address.ce, "Queues", address.queue, _ENABLED)
