"""The viewer: what was recorded, what happens now and what tests found, as one page for a browser.

    page      the document: style, scripts and what they may do (a policy); the same for a server and for one file that
              is shared
    queries   the questions that the page asks, each a pure function over an open store; one table
    html_file everything that the page would ask, put into it: an artefact that asks nobody
    serve     `llmproxy ui`: the page and its data on loopback, for whoever has the token

What the page is made of lies in `static/`: ES modules without a build step, Preact and htm. Recorded text reaches them
as JSON and becomes text nodes; nothing here and nothing there turns it into markup. docs/ui.md is the user's page.
"""
