"""`make demo`: one query, three sinks, killed at every interesting place, counted by independent readers."""
