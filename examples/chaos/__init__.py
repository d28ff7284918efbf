"""Batch functions as people write them, to be struck by ``epochal chaos run``; each file begins with its command."""
