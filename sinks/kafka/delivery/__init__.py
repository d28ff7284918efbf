"""How can all tasks write an epoch into one open Kafka transaction, which one request ends after the decision?

A Kafka transaction is plain data: a transactional id, a producer id and a producer epoch.  Whoever holds these three
can end it.  So prepared rows can lie in Kafka itself, invisible to ``read_committed`` readers, until the epoch is
decided.

    prepare   encoding.py: tasks encode the rows as record batches, in files beside the durable copy
              kafka/voting.py: one InitProducerId; the fence and the marker are read; partitions are added
              producing.py, deliver.py: tasks send the batches, each to partitions of its own; the driver the marker
              kafka/voting.py: the leaders are asked what they hold, and the answer is the vote
    commit    kafka/ending.py: one EndTxn

Why it is exactly once.  Every prepared epoch has a producer epoch of its own, because ``prepare`` calls InitProducerId
first.  Whoever else writes for this transactional id (a fence, an operator's marker, the next epoch, a redo) calls it
first, too.  That ends the open transaction for good.  So EndTxn commits only if nobody has touched the sink since
``prepare`` read its fence and its marker, and the broker decides this in one step.  A transaction that was ended
without a commit is, to all others, an attempt that failed: ``commit`` then produces the epoch from the durable copy.

What would break it, and therefore never happens:

- Two transactions in one producer epoch.  An abort by EndTxn would allow that: the broker would drop records of the
  second as repeats of the first.  So a transaction is aborted by the next InitProducerId alone.
- Other bytes for the same sequence number: the broker acknowledges and drops them.  So records come from files only.
- EndTxn before the decision: only ``commit`` and ``finish`` send it, for a committable that the epoch log holds.

The idea of a transaction that outlives its producer is that of KIP-939 and of Flink's sink, which resumes one
transaction per task.
"""
