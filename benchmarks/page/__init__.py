"""How do all stored results look on one page?  ``python -m benchmarks.page`` writes it, self-contained.

It compares the newest run with the run before.  It uses the blocks and charts of the chaos kit's report.  The same
results give the same bytes.
"""
