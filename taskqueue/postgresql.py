"""PostgreSQL as we need it: READ COMMITTED, and no wait that never ends."""

from sqlalchemy import URL, Engine, create_engine

# No statement of ours takes longer than seconds: one that does is stuck and holds up others.
# Behind pgbouncer these need `ignore_startup_parameters = options`, and go on the database role.
_LIMITS = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
# A database host that vanishes without a word is noticed within a minute, not after two hours.
_CONNECT = {
    "connect_timeout": "10",
    "application_name": "pilotage",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # ms
    "options": " ".join(f"-c {name}={value}" for name, value in _LIMITS.items()),
}


def make_engine(url: URL, *, pool_size: int, pool_timeout: float) -> Engine:
    """Make an engine for psycopg; what the URL's query says of the connection goes before our settings."""
    settings = {name: value for name, value in _CONNECT.items() if name not in url.query}
    return create_engine(
        url.set(drivername="postgresql+psycopg").update_query_dict(settings),
        isolation_level="READ COMMITTED",
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=pool_timeout,
        pool_recycle=1800,
        pool_pre_ping=True,  # a server that was restarted costs no request an error
    )
