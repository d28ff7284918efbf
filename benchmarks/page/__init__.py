"""All stored results as one self-contained page, the newest run beside the one before: ``python -m benchmarks.page``.

It is made of the blocks and charts of the chaos kit's report; the same results give the same bytes.
"""
