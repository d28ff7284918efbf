"""Delta append with Delta's own idempotence (txnAppId, txnVersion).  It is exact as long as the checkpoint is kept.

epochal chaos run --target examples.chaos.delta_txn:write --reader examples.chaos.delta_txn:read

After the checkpoint is deleted, Spark counts epochs from 0 again.  Delta takes new rows for old ones, and drops them.

epochal chaos run --strike delete:checkpoint:after-return \
    --target examples.chaos.delta_txn:write --reader examples.chaos.delta_txn:read
"""

import os

TABLE = os.environ.get("EPOCHAL_CHAOS_FOLDER", "/tmp") + "/delta-txn"


def write(df, epoch):
    delta = df.write.format("delta").mode("append")
    delta.option("txnAppId", "job").option("txnVersion", epoch).save(TABLE)


def read():
    from deltalake import DeltaTable

    return DeltaTable(TABLE).to_pyarrow_table().to_pylist()
