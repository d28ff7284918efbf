"""One module per table; ``run(options)`` measures it."""
