"""Sums as CSV: for spreadsheets, and for plots elsewhere."""

import csv
import io
from typing import Final

from pilotage.service.models.accounting import AccountingAnswer, AccountingRow

MEDIA_TYPE: Final = "text/csv"
_SUMS: Final = tuple(name for name in AccountingRow.model_fields if name != "waited")
#: A cell that begins so is a formula to spreadsheets, and names come from anybody.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def text(answer: AccountingAnswer) -> str:
    """One line a row; a column for each cause of waiting, in seconds."""
    causes = sorted({cause for row in answer.rows for cause in row.waited})
    names = [*(["at"] if answer.bucket else []), *answer.by]
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\r\n")
    lines.writerow([*names, *_SUMS, *(f"waited_seconds: {cause}" for cause in causes)])
    for row in answer.rows:
        said = row.model_dump(mode="json")
        values = [_harmless(said[name]) for name in names] + [said[name] for name in _SUMS]
        lines.writerow(values + [row.waited.get(cause, 0) for cause in causes])
    return written.getvalue()


def _harmless(value: str) -> str:
    return f"'{value}" if value.startswith(_FORMULA) else value
