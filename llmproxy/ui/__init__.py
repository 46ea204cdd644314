"""The viewer: recordings, live traffic and test reports as one page for a browser. docs/ui.md is the user's page.

The page's parts are in `static/`: ES modules without a build step, Preact and htm. Recorded text reaches them as JSON
and becomes text nodes; no code turns it into markup.
"""
