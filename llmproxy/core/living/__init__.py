"""Some channels for real, the others from the recording: a new model meets recorded tools (``--live llm``), or the other way round.

    LiveChannels    what was asked for: which channels go live, and what becomes of a call of a tool that cannot be answered
    ToolPath        the recorded calls of tools as a walk through states: what changed something, and what was asked in which state
    Living          one such run: how far it is on that walk, and the cassette in which it is kept

A tool has a state, which nobody sees. A recorded result is told only where every call before it that may have changed something was made, in
the recorded order, and no other: anything else is refused, and refused calls change nothing. Pure: no store, no clock.
"""
