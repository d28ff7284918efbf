"""Delta append with Delta's own idempotence (txnAppId, txnVersion): exact, as long as the checkpoint lives.

epochal chaos run --target examples.chaos.delta_txn:write --reader examples.chaos.delta_txn:read

After a deleted checkpoint Spark counts its epochs from 0 again, and Delta takes new rows for old ones: they are lost.

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
