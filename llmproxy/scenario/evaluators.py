"""What published files import for evaluators; each of its names is refused with this reason, too."""

from llmproxy.scenario.base.elsewhere import SERVERS

raise ImportError(f"scenario.evaluators {SERVERS}", name=__name__)
