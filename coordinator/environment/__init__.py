"""Which versions of other software does Epochal work with, and how is a module imported late?

This folder has the table of supported versions with its check at start, helpers for modules that are imported when they
are first used, and the old names of modules that moved.
"""
