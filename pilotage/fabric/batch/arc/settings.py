"""What is said of an ARC CE in a file."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pilotage.fabric.batch.arc.rest import Credentials


class ComputingElement(BaseModel):
    """Where a CE is, and by what it knows us."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(
        pattern=r"^https://[^\s/?#@]+(/[^\s?#]*)?$"
    )  #: of its A-REX, such as https://ce.example.org/arex
    token_file: Path | None = None  #: of a token that the CE takes; read anew whenever it changes
    certificate: Path | None = None  #: of the client, or a proxy (PEM)
    key: Path | None = None  #: of the certificate; none: it is in the same file
    authorities: Path | None = None  #: CA certificates (PEM), a file or a directory; none: the host's

    @model_validator(mode="after")
    def _says_who_we_are(self) -> Self:
        if self.token_file is None and self.certificate is None:
            raise ValueError("a CE needs a token_file, or a certificate with its key")
        if self.key is not None and self.certificate is None:
            raise ValueError("there is a key without its certificate")
        return self

    def credentials(self) -> Credentials:
        """As connections use it."""
        return Credentials(
            authorities=self.authorities,
            token_file=self.token_file,
            certificate=self.certificate,
            key=self.key,
        )
