"""How does one run go?

It plans strikes, starts drivers, carries the strikes out, and judges what was seen.
"""
