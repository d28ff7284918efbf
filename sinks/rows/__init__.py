"""What happens to rows before a sink writes them?

Columns are selected and renamed, rows that a sink cannot hold go to another sink, keys are checked, and digests are
computed.
"""
