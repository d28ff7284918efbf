"""What are the terms of the protocol?

Epochs, decisions and markers as data, the errors, the events and the failpoints.  Every other folder may import
this one.  This folder imports no other folder, and it needs nothing but Python.
"""
