"""The index of a copy that consists of record batches: which batch lies where.

A copy holds the files of the tasks and ``index.json``, which the driver writes last.  The records of a small epoch lie
in the index itself::

    {"version": 1, "files": [name], "batches": [[topic, partition, file or -1, offset, length, rows, attributes, crc]],
     "data": base64}
"""

from __future__ import annotations

import base64
import json
import os

from epochal.coordinator.model.epoch import Copy, CopyFile, EpochNumber
from epochal.coordinator.model.errors import CommitInDoubt
from epochal.sinks.kafka.delivery.deliver import Batch
from epochal.sinks.kafka.delivery.encoding import Encoded
from epochal.sinks.kafka.wire.messages import Partition
from epochal.sinks.rows.formats import check_part
from epochal.sinks.spark import stage

FORM = "kafka records"
"""What ``Copy.form`` says of such a copy."""
INDEX, VERSION = "index.json", 1


def write(encoded: Encoded, folder: str, local: str, schema: str) -> Copy:
    """Write the index; return the copy.  ``folder``: its URI, ``local``: the same as a path.  Raises ``OSError``."""
    rows: dict[str, int] = {}
    data = bytearray()
    placed: list[tuple[Partition, str, int, Batch]] = []
    for where, its in encoded.batches.items():
        for batch in its:
            if isinstance(batch.source, bytes):
                name, offset = INDEX, len(data)
                data += batch.source[batch.offset : batch.offset + batch.length]
            else:
                name, offset = os.path.basename(batch.source), batch.offset
            rows[name] = rows.get(name, 0) + batch.rows
            placed.append((where, name, offset, batch))
    files = sorted(name for name in rows if name != INDEX)
    numbers = {INDEX: -1, **{name: number for number, name in enumerate(files)}}
    batches = [
        [*where, numbers[name], offset, batch.length, batch.rows, batch.attributes, batch.crc]
        for where, name, offset, batch in placed
    ]
    told = {"version": VERSION, "files": files, "batches": batches, "data": base64.b64encode(data).decode()}
    text = json.dumps(told).encode()
    os.makedirs(local, exist_ok=True)
    with open(os.path.join(local, INDEX), "xb") as file:
        file.write(text)
    held = [CopyFile(name, os.path.getsize(os.path.join(local, name)), rows[name]) for name in files]
    return Copy(folder, (CopyFile(INDEX, len(text), rows.get(INDEX, 0)), *held), schema, FORM)


def read(copy: Copy, sink: str, epoch: EpochNumber) -> Encoded:
    """Return the batches of a copy; ``CommitInDoubt`` if its files are not those that were written."""
    local = stage.local_path(copy.root)
    assert local is not None, "such a copy is written to local paths alone"
    try:
        stage.check_files(copy)
        with open(os.path.join(local, INDEX), "rb") as file:
            told = json.load(file)
        check_part("copy", told["version"], VERSION, sink, epoch)
        data = base64.b64decode(told["data"])
        batches: dict[Partition, list[Batch]] = {}
        for topic, partition, number, *its in told["batches"]:
            source = data if number < 0 else os.path.join(local, told["files"][number])
            batches.setdefault(Partition(topic, partition), []).append(Batch(source, *its))
        return Encoded(batches)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CommitInDoubt(
            f"the index of the durable copy cannot be read: {type(error).__name__}: {error}",
            sink=sink,
            epoch=epoch,
            state=f"copy {copy.root}",
            help="restore this file from a backup of the checkpoint; without it a decided epoch cannot be redone",
        ) from error
