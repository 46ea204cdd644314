"""A test in several parts, each on a machine of its own: which scenarios a part has, and one report of all parts.

    scenarios, known times, 3/10 -> the scenarios of the third part        cut.py
    a report file -> what it tells                                         reading.py
    what ten parts tell -> what one whole test would have told             merging.py, junit.py

Nothing here knows a machine: the same scenarios and times give the same parts everywhere, and every part says in its report how all of
them were cut, so that a part that was cut otherwise, came twice or never came is noticed when they are put together.
"""
