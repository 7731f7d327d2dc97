"""Terminal output: the progress of a run, and tables of results. Only this package imports rich.

Progress goes to standard error, results to standard output. Without a terminal, progress is printed as plain lines and
tables are as wide as they need to be.
"""
