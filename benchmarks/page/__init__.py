"""All stored results as one self-contained page: ``python -m benchmarks.page``.

It compares the newest run with the run before.  It uses the blocks and charts of the chaos kit's report.  The same
results give the same bytes.
"""
