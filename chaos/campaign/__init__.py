"""How does one run of the kit go?

A campaign plans strikes, starts drivers, carries the strikes out, and judges what was seen.
"""
