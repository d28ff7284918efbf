from __future__ import annotations
import pytest
from tests.integration.console.support import Console


def test_try(console: Console) -> None:
    for words in (
        ("status", console.checkpoint),
        ("log", console.checkpoint, "--offsets"),
        ("verify", console.checkpoint),
        ("reconcile", console.checkpoint, "table", "lake"),
        ("reconcile", console.checkpoint, "table", "topic"),
        ("txns", console.checkpoint),
        ("clean", console.checkpoint),
        ("sql", "--filter", "at"),
        ("sql", "--schema", "id bigint, a array<struct<x:int,y:decimal(3,1)>>"),
    ):
        for j in ((), ("--json",)):
            d = console.process(*words, *j)
            print(words[0], d.returncode)
            print(d.stdout)
            print(d.stderr[-3000:])
    import shutil

    shutil.rmtree("/tmp/ck", ignore_errors=True)
    shutil.copytree(console.folder, "/tmp/ck")
