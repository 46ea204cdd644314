"""What is run: selection by id, tag and failure, options, the project's defaults, costs beforehand."""
