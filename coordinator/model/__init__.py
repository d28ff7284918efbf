"""What are the terms of the protocol?

Epochs, decisions and markers as data, the errors, the events and the failpoints.  Every other room may import this
one.  This room imports no other room, and it needs nothing but Python.
"""
