"""Which versions of other software does Epochal work with, and how is a module imported late?

The table of supported versions with the check at start, and helpers for modules that are loaded when first used.
"""
