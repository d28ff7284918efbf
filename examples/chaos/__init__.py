"""Batch functions as people usually write them, for ``epochal chaos run``.  Each file begins with its command."""
