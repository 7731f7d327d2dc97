"""How Alembic reaches the database: over a connection, already inside a transaction, that the store hands in.

A new migration is one more file in `versions`, named by the next number and a word, such as `0101_costs.py`, with
that number as its `revision`; a test compares what the migrations make with the models. Tables are changed with
`op.batch_alter_table`, which works on SQLite too. The store drops the view before migrations run and creates it
afterwards (`autotune/store/migration.py`). It switches foreign keys off while migrations run, so that a rebuilt table
loses no rows that refer to it, and checks them before it commits.
"""

from alembic import context

from autotune.store.models import all_tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=all_tables(),
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
