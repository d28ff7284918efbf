"""What becomes of rows before any sink writes them?

Columns are selected and renamed, rows that a sink cannot hold are set apart, keys are compared, digests are taken.
"""
