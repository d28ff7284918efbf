"""What a file system must do for a log of files.  It is tried before the first record is written.

1. A file can have two names (hard links), and a folder can be synced.
2. A file whose names are deleted has none, also while a process has it open.  NFS and most of FUSE instead rename such
   a file (``.nfs0000...``, ``.fuse_hidden...``).  There an append could not see that its record was deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os

from epochal.checkpoints.disk import Disk
from epochal.checkpoints.names import draft_name, keeps_deleted, record_name, without_links, without_sync

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)


def try_out(disk: Disk, path: str, handle: int, where: str) -> None:
    """Raise ``Misconfigured`` if no log can lie where the draft at ``path`` lies.  The draft is deleted and closed.

    The caller holds the draft's lock, so that no compaction takes it for that of a dead process.
    """
    folder = os.path.dirname(path)
    second = os.path.join(folder, draft_name(record_name(0)))
    try:
        link(disk, path, second, where)
        sync_folder(disk, folder, where)
        for name in (second, path):
            disk.unlink(name)
        if disk.names_of(handle):
            raise keeps_deleted(where)
    finally:
        for name in (second, path):
            with contextlib.suppress(OSError):
                disk.unlink(name)
        disk.close(handle)


def link(disk: Disk, path: str, name: str, where: str) -> None:
    """Give the file a second name; ``Misconfigured`` where files cannot have two."""
    try:
        disk.link(path, name)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise without_links(where, error) from error
        raise


def sync_folder(disk: Disk, path: str, where: str) -> None:
    """Make the names in a folder durable; ``Misconfigured`` where this cannot be asked for."""
    try:
        disk.sync_folder(path)
    except OSError as error:
        if error.errno in _NO_SYNC:
            raise without_sync(where, error) from error
        raise
