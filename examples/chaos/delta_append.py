"""Delta append in foreachBatch.  After a crash between the append and Spark's commits/N, rows are there twice.

epochal chaos run --target examples.chaos.delta_append:write --reader examples.chaos.delta_append:read
"""

import os

TABLE = os.environ.get("EPOCHAL_CHAOS_FOLDER", "/tmp") + "/delta-append"


def write(df, epoch):
    df.write.format("delta").mode("append").save(TABLE)


def read():
    from deltalake import DeltaTable

    return DeltaTable(TABLE).to_pyarrow_table().to_pylist()
