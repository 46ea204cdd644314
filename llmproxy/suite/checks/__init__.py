"""What a step asserts: tools, usage, answers, entities, each against what was measured."""
