"""What is the protocol?

``coordinator.py`` holds the order of its steps, ``judge.py`` the rules that allow or refuse them, ``actions.py`` what
an operator may decide.  This folder needs no Spark and no server: it reaches the epoch log and the sinks only through
their protocols.
"""
