"""What are the terms of the protocol?

Epochs, decisions and markers as data, the errors, the events and the failpoints.  Every other room may import this one;
it imports no other, and needs nothing but Python.
"""
