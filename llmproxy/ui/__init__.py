"""The viewer: recordings, live traffic and test reports as one page for a browser.

    page      the document: style, scripts and their security policy; the same for a server and for a shared file
    queries   the page's queries, each a pure function over an open store; one table
    html_file the page with all its data embedded: a file that sends no requests
    serve     `llmproxy ui`: the page and its data on loopback, protected by a token

The page's parts are in `static/`: ES modules without a build step, Preact and htm. Recorded text reaches them as JSON
and becomes text nodes; no code turns it into markup. docs/ui.md is the user's page.
"""
