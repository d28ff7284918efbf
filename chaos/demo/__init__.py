"""Does a killed job really lose nothing and write nothing twice?

`make demo`: one query, three sinks, killed at every interesting place, counted by independent readers."""
