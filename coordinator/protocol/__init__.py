"""What is the protocol?

``coordinator.py`` holds the order of its steps, ``judge.py`` the rules that allow or refuse them, ``acts.py`` what an
operator may decide.  No Spark and no server: it sees the epoch log and the sinks through their protocols.
"""
