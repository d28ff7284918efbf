"""What was written down under old names, and is read today."""

from __future__ import annotations

import base64
import importlib.machinery
import pickle
import subprocess
import sys

from epochal.chaos.campaign import own
from epochal.coordinator.environment.moved import MOVED, OldNames
from epochal.sinks import KafkaSink

LOOKED = """
gASVzwQAAAAAAACMGGVwb2NoYWwuc2lua3Mua2Fma2Euc2lua5SMCUthZmthU2lua5STlCmBlH2UKIwKX21hZGVfd2l0aJR9lCiMEWJvb3RzdH
JhcF9zZXJ2ZXJzlIwDaDoxlIwFdG9waWOUjAF0lIwGdG9waWNzlE6MA2tleZSMAmlklIwFdmFsdWWUTowHaGVhZGVyc5ROjAlwYXJ0aXRpb26U
TowKdG9tYnN0b25lc5SJjAVzbG90c5RLAowGc2VsZWN0lE6MBXdoZXJllE6MCGJhZF9yb3dzlIwEZmFpbJSMBG5hbWWUTowLcGFydGl0aW9uZX
KUjA5tdXJtdXIyX3JhbmRvbZSME3RyYW5zYWN0aW9uX3RpbWVvdXSUTowPcmVxdWVzdF90aW1lb3V0lEdAPgAAAAAAAIwHb3B0aW9uc5ROjApw
YXJ0aXRpb25zlE6MC3JlcGxpY2F0aW9ulE6MDHRvcGljX2NvbmZpZ5ROjAtrZWVwX2Vwb2Noc5RN6AOMCWtlZXBfZGF5c5ROdYwFX2Fsc2+UTo
wHX2lzX25ld5SJjApfYm9vdHN0cmFwlGgIjAZfdG9waWOUaAqMBV9uYW1llIwHa2Fma2EtdJSMCV9kZWNsYXJlZJSMGmVwb2NoYWwuc2lua3Mu
a2Fma2EudG9waWNzlIwIRGVjbGFyZWSUk5QpgZR9lCiMBW5hbWVzlGgKhZSMB3NldmVyYWyUiXVijAtfbWFrZV92YWx1ZZROjAlfZW5jb2Rpbm
eUjBhlcG9jaGFsLnNpbmtzLmthZmthLnJvd3OUjAhFbmNvZGluZ5STlCmBlH2UKGgMaA1oDk5oGGgZjApwcm9qZWN0aW9ulIwYZXBvY2hhbC5z
aW5rcy5wcm9qZWN0aW9ulIwKUHJvamVjdGlvbpSTlCmBlH2UKIwEc2lua5RoJ2gTTmgUTowIX2NoZWNrZWSUfZR1YowIc2V0dGluZ3OUfZRoCU
5oEE5oD06MBG1hZGWUiXViaBVOjAZfc2xvdHOUSwKMCl9ldmVyX3VzZWSUSwGMC190b21ic3RvbmVzlImMFF90cmFuc2FjdGlvbl90aW1lb3V0
lE6MEF9yZXF1ZXN0X3RpbWVvdXSUR0A+AAAAAAAAjAhfb3B0aW9uc5ROjAtfcGFydGl0aW9uc5ROjAxfcmVwbGljYXRpb26UTowNX3RvcGljX2
NvbmZpZ5R9lIwKX3JldGVudGlvbpSMFGVwb2NoYWwuc2lua3MuZXBvY2hzlIwJUmV0ZW50aW9ulJOUKYGUfZQojAZlcG9jaHOUTegDjARkYXlz
lE51YowFX2FnZWSUTowKX2p1ZGdlZF9ieZROjAdfbG9va2VklIwaZXBvY2hhbC5zaW5rcy5rYWZrYS5tYXJrZXKUjAVQbGFjZZSTlCmBlH2UKI
wDYXBwlGheaD6MB2thZmthLXSUjARzbG90lEsAdWJoKYwGVG9waWNzlJOUKYGUfZQojAdjbHVzdGVylGhljAd0YXJnZXRzlH2UjAZtYXJrZXKU
TmgwiXVihpSMCF9sb25nZXN0lE6MCF9zZXNzaW9ulE6MCV9zZXR0aW5nc5R9lIwIX2p1ZGdpbmeUTowIX3dhdGNoZWSUTowKX2V2YWx1YXRlZJ
ROdWIu
"""
"""A Kafka sink that had looked, pickled by the version before the verbs of a sink became files of their own."""


def test_a_sink_that_was_pickled_after_a_look_is_read() -> None:
    read = pickle.loads(base64.b64decode(LOOKED))
    assert repr(read) == repr(KafkaSink("h:1", topic="t", key="id", slots=2))


def test_our_own_pipelines_are_known_under_the_target_that_was_documented() -> None:
    assert {name: own.named(f"epochal.chaos.own:{name}") is one for name, one in own.OWN.items()} == dict.fromkeys(
        own.OWN, True
    )


def test_two_threads_that_import_old_names_at_once_leave_each_module_its_spec() -> None:
    """The steps of ``import``, of one thread and of another: create, create, run, run."""
    [finder] = [found for found in sys.meta_path if isinstance(found, OldNames)]
    names = ("epochal.coordinator.epoch", "epochal.coordinator.errors")
    modules = [finder.create_module(importlib.machinery.ModuleSpec(name, finder)) for name in names]
    kept = [module.__spec__ for module in modules]
    try:
        for module in modules:
            finder.exec_module(module)
        assert [module.__spec__ and module.__spec__.name for module in modules] == [MOVED[name] for name in names]
    finally:
        for module, spec in zip(modules, kept, strict=True):
            module.__spec__ = spec


def test_a_module_runs_as_a_program_under_its_old_name() -> None:
    command = [sys.executable, "-m", "epochal.coordinator.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
