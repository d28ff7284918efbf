"""The console command's sub-commands that see and clean: one file per command.

``load.py`` how the user's sinks are found · ``options.py`` what several commands take · ``render.py`` tables, JSON and
exit codes · ``standing.py`` log, sinks and Spark's files, read together and judged · ``app.py`` all commands on one app

Nothing here imports pyspark, and no command starts a session: what needs one says so and ends with exit code 3.
"""
