"""How does an operator inspect, verify and repair?

This folder has the sub-commands of the console command ``epochal``, one file per command.  The other files:

``cli.py`` the entry point · ``app.py`` adds all commands to one app · ``load.py`` finds the user's pipeline ·
``options.py`` options of several commands · ``render.py`` tables, JSON and exit codes · ``standing.py`` reads log,
sinks and Spark's files together and judges them · ``audit.py`` reads the sinks' audits · ``columns.py`` parses columns
for ``sql`` · ``actions.py`` the commands that record what an operator decides (``coordinator/query/operate.py``)

Importing this folder does not import pyspark, and no command starts a Spark session by itself.  The commands that
record a decision use the session that ``--pipeline`` makes; the others end with exit code 3 if they need one.
"""
