"""Does a killed job really lose nothing and write nothing twice?

`make demo` runs one query with three sinks, kills it at every interesting point, and independent readers count the
rows.
"""
