"""The kinds of faults, a file for each sort and a row for each kind; `table` has them all.

Another sort is one more file with `ROWS`, and its name in the table.
"""
