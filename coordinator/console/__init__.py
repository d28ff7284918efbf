"""How does a person look, verify and repair?

The console command's sub-commands, which see, clean and decide: one file per command.

``load.py`` how the user's sinks are found · ``options.py`` what several commands take · ``render.py`` tables, JSON and
exit codes · ``standing.py`` log, sinks and Spark's files, read together and judged · ``audit.py``, ``columns.py`` what
several ask of sinks · ``actions.py`` what a person decides (``coordinator/query/operate.py``) · ``app.py`` all on one
app

Nothing here imports pyspark, and no command starts a session by itself: those that decide use the one that
``--pipeline`` makes, the others end with exit code 3 where they need one.
"""
