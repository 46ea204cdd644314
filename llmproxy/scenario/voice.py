"""What published files import for voice; each of its names is refused with this reason, too."""

from llmproxy.scenario.base.elsewhere import VOICE

raise ImportError(f"scenario.voice {VOICE}", name=__name__)
