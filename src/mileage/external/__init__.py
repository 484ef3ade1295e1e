"""Training programs of others, watched from outside: their clock, their processes, their figures."""
