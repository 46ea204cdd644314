"""How an attacker attacks: strategies that say what to try next, encodings that disguise a message. Pure; the agent asks the models."""
