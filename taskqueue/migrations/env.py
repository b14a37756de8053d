"""What Alembic runs: the migrations, in the transaction that `taskqueue.db.database.upgrade` opened."""

from alembic import context

from cs_config.versions.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
