"""Marks of tests about the databases that they run on."""

import pytest

#: For modules of interface and commands whose paths differ by database: claims, pilots' reports, caches.
BOTH = pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
