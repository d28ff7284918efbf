"""Spark JDBC append in foreachBatch.  Readers see parts of an epoch; after a crash, rows are there twice.

epochal chaos run --server postgres --target examples.chaos.jdbc_append:write --reader examples.chaos.jdbc_append:read
"""

import os

DSN = os.environ.get("EPOCHAL_CHAOS_POSTGRES", "postgresql://postgres@localhost:5432/test")
USER, _, PLACE = DSN.removeprefix("postgresql://").partition("@")


def write(df, epoch):
    jdbc = df.write.format("jdbc").option("url", f"jdbc:postgresql://{PLACE}?user={USER}")
    jdbc.option("dbtable", "naive").option("driver", "org.postgresql.Driver").mode("append").save()


def read():
    import psycopg

    with psycopg.connect(DSN) as connection:
        return [row for (row,) in connection.execute("SELECT row_to_json(naive) FROM naive")]
