"""How do rows become Kafka's record batches, column by column and never row by row?

A batch is a header of 61 bytes and a section of records.  Only the section is made of rows; it is written once, and it
is the durable copy.  The header says who produces the batch and when, and is made at each delivery.

``write.py`` writes the sections of many rows to a file, by topic-partition, as ``layout.py`` says.  It gathers rows
with ``blocks.py`` and uses all of these: ``places.py`` says where each row goes; ``partitioner.py`` chooses that for
most, with ``hashes.py``; ``cut.py`` decides which rows share a batch; ``records.py`` and ``headers.py`` encode them;
``compress.py`` makes them smaller.
``frame.py`` makes the header in front of a section, ``read.py`` decodes a section again.
``columns.py`` and ``varints.py`` are what Arrow and numpy lack for this.

All of it runs in Spark's Python workers.  It needs numpy, pyarrow and google-crc32c, and imports neither Spark nor
pandas: the import of pandas costs a worker 0.2 s.
"""
