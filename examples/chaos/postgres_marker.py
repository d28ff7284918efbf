"""A small job that is correct: one transaction on one connection writes all rows and the epoch's number.

epochal chaos run --server postgres \
    --target examples.chaos.postgres_marker:write --reader examples.chaos.postgres_marker:read
"""

import os

DSN = os.environ.get("EPOCHAL_CHAOS_POSTGRES", "postgresql://postgres@localhost:5432/test")
TABLES = (
    "CREATE TABLE IF NOT EXISTS shown (id bigint, attempt text, n bigint)",
    "CREATE TABLE IF NOT EXISTS done (epoch bigint PRIMARY KEY)",
)


def write(df, epoch):
    import psycopg

    rows = df.select("id", "attempt", "n").collect()
    with psycopg.connect(DSN) as connection, connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(table)
        cursor.execute("INSERT INTO done VALUES (%s) ON CONFLICT DO NOTHING", [epoch])
        if cursor.rowcount:  # else an earlier attempt has committed this epoch and its rows
            cursor.executemany("INSERT INTO shown VALUES (%s, %s, %s)", rows)


def read():
    import psycopg

    with psycopg.connect(DSN) as connection:
        return [row for (row,) in connection.execute("SELECT row_to_json(shown) FROM shown")]
