"""The verbs of a script over a conversation: what `scenario.user(...)` and its siblings do when their step comes.

A verb for a role drops the roles before it; where the role has spoken already, a new turn begins. Scripted text takes the turn of its
role and calls nobody. `max_turns` limits `proceed` only.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmproxy.scenario.running.conversing.conversation import Conversation, await_value, is_undecided
from llmproxy.scenario.script import Callback
from llmproxy.scenario.types import AgentRole, JudgmentRequest, Message, ScenarioResult
from llmproxy.scenario.values.criteria import no_verdict
from llmproxy.scenario.values.messages import as_message, text_of

_ADD = {
    AgentRole.USER: "a scenario.UserSimulatorAgent()",
    AgentRole.AGENT: "your agent",
    AgentRole.JUDGE: "a scenario.JudgeAgent()",
}
"""What to add to the list of agents, by the role that nobody plays."""


class Verbs:
    """What a script may ask of a conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.steps_left = 0
        """Steps of the script that come after the present one."""
        self.checkpoints: list[ScenarioResult] = []
        """Verdicts in mid-script: those that passed, and the one that ended the run."""

    async def message(self, message: Message) -> None:
        """Add a message; a user's or an assistant's takes the turn of that role."""
        role = {"user": AgentRole.USER, "assistant": AgentRole.AGENT}.get(message["role"])
        if role is None:
            self.conversation.add_message(message)
        else:
            await self._speak(role, message)

    async def user(self, content: str | Message | None = None) -> ScenarioResult | None:
        """Let the user speak, or say `content` in his place."""
        return await self._speak(AgentRole.USER, content)

    async def agent(self, content: str | Message | None = None) -> ScenarioResult | None:
        """Let the agent under test speak, or say `content` in its place."""
        return await self._speak(AgentRole.AGENT, content)

    async def judge(
        self, content: str | Message | None = None, *, criteria: Sequence[str] | None = None
    ) -> ScenarioResult | None:
        """Demand a verdict, with `content` as context; None if it is open, or a checkpoint that passed, and the script goes on."""
        context = None if content is None else text_of(as_message(content, AgentRole.USER))
        chosen = None if criteria is None else list(criteria)
        asked = JudgmentRequest(criteria=chosen, additional_context=context)
        result = await self._call_role(AgentRole.JUDGE, content, asked)
        if chosen is None:
            return None if self.steps_left and is_undecided(result) else result
        result = result or no_verdict(chosen)
        if not result.success:
            return result
        self.checkpoints.append(result)
        return None

    async def succeed(self, reasoning: str | None = None) -> ScenarioResult:
        said = reasoning or "Scenario marked as successful with scenario.succeed()"
        return self.conversation.complete(ScenarioResult(success=True, messages=[], reasoning=said))

    async def fail(self, reasoning: str | None = None) -> ScenarioResult:
        said = reasoning or "Scenario marked as failed with scenario.fail()"
        return self.conversation.complete(ScenarioResult(success=False, messages=[], reasoning=said))

    async def proceed(
        self,
        turns: int | None = None,
        on_turn: Callback | None = None,
        on_step: Callback | None = None,
        *,
        on_turn_end: Callback | None = None,
    ) -> ScenarioResult | None:
        """Take steps for so many turns, or until somebody ends it. The turn of the first step counts as the first."""
        self.conversation.farewell = None
        initial: int | None = None
        spoken = False
        """Whether somebody spoke in the turn that goes on."""

        def goes_on() -> bool:
            now = self.conversation.state.current_turn
            return turns is None or now + 1 < (now if initial is None else initial) + turns

        def may_go_on() -> bool:
            return initial is None or goes_on()

        async def turn_ends(_state: object = None) -> None:
            nonlocal spoken
            ended, spoken = spoken, False
            if ended and on_turn_end:
                await await_value(on_turn_end(self.conversation.state))

        while True:
            said = await self.conversation.take_turn(
                may_go_on=may_go_on,
                would_go_on=goes_on,
                on_turn=on_turn,
                on_turn_end=turn_ends,
            )
            initial = self.conversation.state.current_turn if initial is None else initial
            if said is None:
                await turn_ends()
                return None
            spoken = self.conversation.turns.begun
            if on_step:
                await await_value(on_step(self.conversation.state))
            if isinstance(said, ScenarioResult):
                await turn_ends()
                return said

    async def _speak(self, role: AgentRole, content: str | Message | None) -> ScenarioResult | None:
        if content is None:
            return await self._call_role(role, None)
        if role is AgentRole.USER and not self.conversation.turns.has(role):
            self.conversation.turns.pretend(role)  # a scripted user needs no simulator
        elif not self.conversation.turns.claim(role):
            raise ValueError(_nobody(role, content))
        self.conversation.add_message(as_message(content, role))
        self.conversation.voice.step(role.value.lower(), label="scripted")
        return None

    async def _call_role(
        self, role: AgentRole, content: object, judgment: JudgmentRequest | None = None
    ) -> ScenarioResult | None:
        """Call whoever plays a role; only a result is of interest."""
        speaker = self.conversation.turns.claim(role)
        if not speaker:
            raise ValueError(_nobody(role, content))
        self.conversation.unscripted = False
        result = await self.conversation.call(speaker.place, judgment)
        return result if isinstance(result, ScenarioResult) else None


def _nobody(role: AgentRole, content: object) -> str:
    quoted = "" if content is None else f" with content `{content}`"
    return (
        f"Cannot generate a message for role `{role.value}`{quoted} because no agent with this role was found, "
        f"please add {_ADD[role]} to the scenario `agents` list"
    )
