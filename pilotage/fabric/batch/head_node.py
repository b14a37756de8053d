"""A head node: how a host with the batch system's commands is reached over SSH."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from pilotage.fabric.file_section import SettingsPart


class HeadNode(SettingsPart):
    """A host with the batch system's commands, reached over SSH; its host key has to be known.

    What is not stated is taken from `config`, if there is one: a file like OpenSSH's `ssh_config`, with its
    `ProxyJump`, `IdentityFile` and `UserKnownHostsFile`.
    """

    host: str = Field(min_length=1)  #: also a `Host` of `config`
    user: str | None = Field(default=None, min_length=1)
    key: Path | None = None  #: of the login, unencrypted; none: those of the agent and of `config`
    known_hosts: Path | None = None
    port: int | None = Field(default=None, ge=1, le=65_535)
    agent: Path | None = None  #: socket of an agent that holds the key
    config: Path | None = None  #: such as ~/.ssh/config

    @model_validator(mode="after")
    def _can_log_in(self) -> Self:
        if self.config is None:
            missing = [name for name in ("user", "known_hosts") if getattr(self, name) is None]
            missing += ["key or agent"] if self.key is None and self.agent is None else []
            if missing:
                raise ValueError(f"ssh: {', '.join(missing)}: required without a config")
        return self

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """The key, and the socket of the agent that has it."""
        return tuple(path for path in (self.key, self.agent) if path is not None)
