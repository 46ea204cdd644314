"""Sessions: the run of one client through one cassette, with its requests, answers and unused recordings.

`session` has the replay position, a session's calls and all open sessions, `exchange` one request with its answer;
`interceptor` is the interface of features, `journal` keeps each call's outcome and the results of trials.
"""
