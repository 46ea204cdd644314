"""``llmproxy drift``: send recorded requests again and compare the model's new answers with earlier ones.

The sample is the same each night. Only model calls are sent; no tools run. New answers go into a store of their own: a
recording was kept because its test passed, so it is no fair sample of the model's answers. Answers of nights without
drift are the *earlier* ones of the next night.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import typer

from llmproxy.advice import format_llmproxy_command
from llmproxy.amount_formatting import dollars
from llmproxy.cli.parts.options import format_record_command, load_settings
from llmproxy.cli.parts.printing import print_json, print_line, to_safe_line
from llmproxy.cli.parts.store_arguments import STORE, open_given_store
from llmproxy.cli.rerecord import ProviderRequestToRerecord, build_rerecord_request, start_recording_proxy
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.dialects.usage_and_cost import compute_cost, read_usage
from llmproxy.core.providers.routing import get_operation_dialect
from llmproxy.core.secrets.redact import is_redacted_request
from llmproxy.core.store.row_conversion import StoredCallSummary, get_answer_date_or_start
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Ending, Interaction
from llmproxy.errors import Exit, LLMProxyError, SettingsError
from llmproxy.postgres_store_paths import store_exists
from llmproxy.sqlite_file import sidecar_path
from llmproxy.trace.comparing import answer_drift_statistics as stats

if TYPE_CHECKING:
    import httpx

    from llmproxy.core.store.store import Store
    from llmproxy.settings import Loaded

BESIDE = ".drift.db"
_BEFORE, _ASKED = "before ", "asked "
"""Prefixes of cassettes in that store: for nights without drift or with accepted drift, and for other nights."""
_AT_ONCE = 4
_PATIENCE = 600.0
_KEPT_THERE = re.compile(
    rb'"(?:previous_response_id|conversation|container|file_id|file_ids|vector_store_ids|cachedContent|cached_content|'
    rb'fileData|fileUri|file_uri|assistant_id|prompt_cache_id)"\s*:\s*(?!null)'
)
"""Members that refer to server-side objects of one run, which may be gone without any drift."""
_OWN_KINDS = frozenset({"function", "custom"})

type _RequestKey = tuple[str, str, bytes]
type _AnswersByKey = dict[_RequestKey, list[stats.AnswerDriftProperties]]


def drift_command(
    cassettes: list[str] = typer.Argument([], metavar="CASSETTE", help="Cassettes; default: the whole store."),
    calls: int = typer.Option(8, "--calls", min=1, max=1000, metavar="N", help="Recorded calls to send again."),
    runs: int = typer.Option(
        3, "--runs", min=2, max=20, metavar="K", help="Answers per call: two or more are needed to measure the noise."
    ),
    max_cost: str = typer.Option("", "--max-cost", metavar="USD", help="Maximum cost."),
    accept: bool = typer.Option(False, "--accept", help="Send nothing: make the last answers the new baseline."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    store: Path | None = STORE,
    upstream: list[str] = typer.Option([], "--upstream", metavar="NAME=URL", help="Base URL, as in `llmproxy start`."),
) -> None:
    """Send recorded requests again, and report requests that the provider now refuses, and answers whose format or
    behavior changed. Costs money; needs the providers' keys.

    Ends with 0 (no drift seen), 8 (drift) or 9 (could not tell).
    """  # fmt: skip
    loaded = load_settings({"store": store, "upstream": upstream or None, "max_cost": max_cost or None})
    kept = Path(f"{loaded.settings.store}{BESIDE}")
    if accept:
        _make_last_answers_baseline(kept, format_llmproxy_command("drift", loaded.settings.store))
        return
    limit, there = loaded.settings.max_cost, kept.exists()
    plan = _DriftPlan(runs, 0)
    if store_exists(loaded.settings.store):
        with open_given_store(store) as database:
            plan = _choose_calls_to_ask(database, loaded, cassettes, calls, runs, limit)
    old = _read_earlier_night_answers(kept, plan)
    keys = [_request_key(each.recorded) for each in plan.chosen]
    sizes = [(len(old.get(key, ())) or 1, runs) for key in keys]
    if not as_json:
        for text in plan.describe(sizes, limit):
            print_line(text)
    if not plan.chosen:
        if as_json:
            print_json({"verdict": "could not tell", "left_out": dict(plan.left_out)})
        elif not plan.recorded:
            print_line(f"Record first: {format_record_command(loaded)}")
        raise typer.Exit(int(Exit.UNTOLD))
    night = f"{_ASKED}{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    spending = _CostLimit(limit)
    try:
        _send_and_record_calls(plan, spending, kept, night, quiet=as_json)
    except KeyboardInterrupt:
        print_line(f"Interrupted: {spending.asked} answers came and are kept in {kept}; at most {spending.format()}.")
        raise
    finally:
        if not there and not spending.asked:
            _delete_unused_store(kept, night)
    new = _read_nightly_answers(kept, night)
    pairs = zip(plan.chosen, keys, strict=True)
    found = [_AnswerDrift(each, old.get(key, ()), new.get(key, ())) for each, key in pairs]
    verdicts = _judge_models(found)
    drifted = any(each.has_drifted for each in verdicts)
    code = Exit.DRIFTED if drifted else Exit.UNTOLD if any(each.p is None for each in verdicts) else Exit.OK
    if code is Exit.OK:
        with open_given_store(kept, writable=True) as database:
            database.rename_cassette(night, night.replace(_ASKED, _BEFORE))
    if as_json:
        print_json(_to_json(verdicts, plan, spending, code))
    else:
        for text in _format_report(verdicts, spending, code, kept):
            print_line(text)
    raise typer.Exit(int(code))


def _delete_unused_store(kept: Path, night: str) -> None:
    """Delete a store without answers, unless it cannot be read, or another drift or a proxy still records there."""
    with suppress(LLMProxyError):
        with open_given_store(kept) as database:
            used = database.query("SELECT 1 FROM cassettes WHERE name <> ? OR holder IS NOT NULL", (night,))
            if used or database.count_interactions(None, superseded=True):
                return
        for path in (kept, sidecar_path(kept, ".state.db")):
            for suffix in ("", "-wal", "-shm", "-journal"):
                sidecar_path(path, suffix).unlink(missing_ok=True)


def _make_last_answers_baseline(kept: Path, first: str) -> None:
    """Make the last night's answers the baseline. Raises SettingsError: there are none."""
    if not kept.exists():
        raise SettingsError(f"nothing was asked yet: {kept} is not there.", hint=f"First: {first}")
    with open_given_store(kept, writable=True) as database:
        nights = sorted({each.name for each in database.cassettes()}, key=lambda name: name.partition(" ")[2])
        if not nights:
            raise SettingsError(f"nothing was asked yet: {kept} is empty.", hint=f"First: {first}")
        for name in nights[:-1]:
            database.delete_interactions([row.id for row in database.list_summaries(name)])
        if nights[-1].startswith(_ASKED):
            database.rename_cassette(nights[-1], nights[-1].replace(_ASKED, _BEFORE))
    print_line(f"What was answered on {nights[-1].partition(' ')[2]} counts as before from now on.")


@dataclass(slots=True)
class _DriftPlan:
    runs: int
    recorded: int
    chosen: list[ProviderRequestToRerecord] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def describe(self, sizes: Sequence[tuple[int, int]], limit: Decimal | None) -> Iterator[str]:
        for reason, count in self.left_out.most_common():
            yield f"left out: {count} of {self.recorded}: {to_safe_line(reason)}"
        if not self.chosen:
            why = "there is no call that can be asked again" if self.recorded else "nothing is recorded there"
            yield f"Could not tell: {why}. Nothing was sent."
            return
        usual = [compute_cost(row.provider, row.model, row.usage) for row in (each.recorded for each in self.chosen)]
        known = [each for each in usual if each is not None]
        cost = sum(known, Decimal(0)) * self.runs
        price = dollars(cost) if len(known) == len(usual) else "of unknown price"
        bound = f", at most {dollars(limit)}" if limit is not None else ""
        if limit is not None and limit < cost:
            answers = len(sizes) * self.runs
            bought = int(limit / cost * answers)
            bound += f", which buy about {bought} of {answers} answers"
            each, more = divmod(bought, len(sizes))
            sizes = [(old, each + (n < more)) for n, (old, _) in enumerate(sizes) if each + (n < more) > 1]
        some = f"{len(self.chosen)} of {self.recorded} recorded calls"
        yield f"asking {some} {self.runs} times each: about {price}{bound}"
        seen = ", ".join(
            f"in {share:.0%} {stats.estimate_answer_drift_test_power(sizes, share):.2f}" for share in stats.PLANTED
        )
        chance = f"if by chance two answers differ in {stats.NOISE:.0%}"
        yield f"how probably a change of behavior would be seen: {seen} of these calls, {chance}"


def _choose_calls_to_ask(
    database: Store, loaded: Loaded, cassettes: Sequence[str], calls: int, runs: int, limit: Decimal | None
) -> _DriftPlan:
    names: list[str | None] = [*dict.fromkeys(cassettes)] or [None]
    rows = [row for name in names for row in database.list_summaries(name)]
    for name in cassettes:
        if not any(row.cassette == name for row in rows):
            raise SettingsError(
                f"cassette {name} is not in {database.path}.", hint=format_llmproxy_command("ls", database.path)
            )
    plan, groups = _DriftPlan(runs, len(rows)), defaultdict(list)
    for row in rows:
        if reason := _explain_exclusion(row):
            plan.left_out[reason] += 1
        else:
            groups[row.model, row.cassette, row.operation, row.stream].append(row)
    for row in _draw_rows_round_robin(groups):
        if len(plan.chosen) == calls:
            break
        each = database.load(row.id)
        try:
            plan.chosen.append(_prepare_call(each, loaded, limit))
        except SettingsError as error:
            plan.left_out[error.message.rstrip(".")] += 1
    return plan


def _explain_exclusion(row: StoredCallSummary) -> str:
    if row.superseded:
        return "replaced by a newer recording"
    if row.operation not in CHAT or row.method != "POST":
        return "no question to a model"
    return "" if row.status in range(200, 300) and row.ending is Ending.COMPLETE else "was not answered"


def _draw_rows_round_robin(groups: Mapping[tuple[Any, ...], list[StoredCallSummary]]) -> Iterator[StoredCallSummary]:
    """Yield rows round-robin over models, and over cassettes within a model; each key once."""
    models: dict[object, list[list[StoredCallSummary]]] = defaultdict(list)
    for name in sorted(groups, key=str):
        models[name[0]].append(sorted(groups[name], key=lambda row: sha256(row.key.encode()).digest()))
    queues = [[rows.pop(0) for _ in range(max(map(len, kinds))) for rows in kinds if rows] for kinds in models.values()]
    seen = set()
    while queues := [queue for queue in queues if queue]:
        for queue in queues:
            if (row := queue.pop(0)).key not in seen:
                seen.add(row.key)
                yield row


def _prepare_call(recorded: Interaction, loaded: Loaded, limit: Decimal | None) -> ProviderRequestToRerecord:
    """Return a call to send. Raises SettingsError with the reason for leaving it out."""
    if is_redacted_request(recorded.request):
        raise SettingsError("a secret was taken out of the request, and nobody knows it any more")
    body = parse_json_or_none(recorded.request.body)
    if not isinstance(body, dict):
        raise SettingsError("the request's body was not recorded, or is no JSON")
    if _KEPT_THERE.search(recorded.request.body):
        raise SettingsError("names what a server kept")
    if any(_is_provider_tool(tool) for tool in body.get("tools") or ()):
        raise SettingsError("runs tools of the provider")
    made = build_rerecord_request(recorded, loaded)
    if limit is not None and made.most is None:
        raise SettingsError("nothing says what an answer costs at the most, which --max-cost needs")
    if limit is not None and made.most is not None and made.most > limit:
        raise SettingsError(f"one answer may cost {dollars(made.most)}, more than --max-cost")
    return made


def _is_provider_tool(tool: object) -> bool:
    if not isinstance(tool, dict):
        return True
    ours = {"functionDeclarations", "function_declarations", "toolSpec", "input_schema", "function", "parameters"}
    return not (ours & tool.keys()) and tool.get("type") not in _OWN_KINDS


@dataclass(slots=True)
class _CostLimit:
    """Money spent; calls in progress count with their maximum cost."""

    limit: Decimal | None
    spent: Decimal = Decimal(0)
    reserved: Decimal = Decimal(0)
    unknown: int = 0
    asked: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    ended: bool = False
    change: threading.Condition = field(default_factory=threading.Condition)

    def reserve(self, most: Decimal | None) -> bool:
        """Return whether a call may be sent; waits for calls in progress, which may cost less than reserved."""
        with self.change:
            while self.limit is not None and (most is None or self.spent + self.reserved + most > self.limit):
                if self.ended or not self.reserved:
                    self.refused += 1
                    return False
                self.change.wait()
            self.reserved += most or 0
            return not self.ended

    def settle(self, most: Decimal | None, cost: Decimal | None, lost: str) -> None:
        """Count an answer, or the reason why it is `lost`; an unknown price counts as the maximum cost."""
        with self.change:
            self.reserved -= most or 0
            self.spent += cost if cost is not None else most or 0
            self.unknown += cost is None and most is None
            self.asked += not lost
            self.lost.update([lost] if lost else ())
            self.change.notify_all()

    def format(self) -> str:
        more = f", {self.unknown} of unknown price" if self.unknown else ""
        return f"{dollars(self.spent)} spent{more}"


def _send_and_record_calls(plan: _DriftPlan, spending: _CostLimit, kept: Path, night: str, *, quiet: bool) -> None:
    import httpx

    # The first answers of all calls come before the second ones: a budget that ends early has seen every call.
    work = [each for _ in range(plan.runs) for each in plan.chosen]
    with (
        ThreadPoolExecutor(_AT_ONCE) as pool,  # is left last: what waits for the proxy ends with it
        start_recording_proxy(plan.chosen, kept, night) as proxy,
        httpx.Client(base_url=proxy.url, trust_env=False, timeout=_PATIENCE) as client,
    ):
        try:
            for done, _ in enumerate(pool.map(lambda each: _send_call_and_settle(client, each, spending), work), 1):
                if not quiet and (done % 10 == 0 or done == len(work)):
                    typer.echo(f"{done} of {len(work)}, {spending.format()}", err=True)
        finally:
            spending.ended = True


def _send_call_and_settle(client: httpx.Client, sampled: ProviderRequestToRerecord, spending: _CostLimit) -> None:
    import httpx

    recorded = sampled.recorded
    if not spending.reserve(sampled.most):
        return
    url, cost, lost = f"/{quote(recorded.provider)}{recorded.request.target}", None, ""
    try:
        answer = client.post(url, content=recorded.request.body, headers=list(sampled.headers))
        family = get_operation_dialect(recorded.provider, recorded.operation)
        kind = answer.headers.get("content-type", "")
        if "x-llmproxy-error" in answer.headers:
            lost = _read_proxy_error(answer.content) or answer.reason_phrase
        usage = read_usage(family, recorded.operation, kind, answer.content, tuple(answer.headers.items()))
        cost = compute_cost(recorded.provider, recorded.model, usage) if answer.is_success else Decimal(0)
    except httpx.HTTPError as error:
        lost = f"{type(error).__name__}: {error}"  # what came of it is in the store, or nothing is
    finally:
        spending.settle(sampled.most, cost, lost)


def _read_proxy_error(body: bytes) -> str:
    tree = parse_json_or_none(body)
    inner = tree.get("error", tree) if isinstance(tree, dict) else {}
    said = inner.get("message") if isinstance(inner, dict) else inner
    return str(said or "").removeprefix("llmproxy: ").partition("\n")[0]


def _request_key(each: Interaction) -> _RequestKey:
    return each.provider, each.request.target, sha256(each.request.body).digest()


def _read_nightly_answers(kept: Path, begins: str, since: Mapping[_RequestKey, float] | None = None) -> _AnswersByKey:
    found: _AnswersByKey = defaultdict(list)
    if kept.exists():
        with open_given_store(kept) as database:
            for name in {each.name for each in database.cassettes() if each.name.startswith(begins)}:
                for each in database.iter_interactions(name):
                    if since is None or each.started_at >= since.get(_request_key(each), 0):
                        found[_request_key(each)].append(stats.extract_answer_drift_properties(each))
    return found


def _read_earlier_night_answers(kept: Path, plan: _DriftPlan) -> _AnswersByKey:
    """Return the earlier answers; a newer recording of the request replaces older answers."""
    asked = (each.recorded for each in plan.chosen)
    since = {_request_key(each): get_answer_date_or_start(each.started_at, each.response.headers) for each in asked}
    every = _read_nightly_answers(kept, _BEFORE, since)
    return {name: [each for each in found if each.is_success] for name, found in every.items()}


@dataclass(frozen=True)
class _AnswerDrift:
    sampled: ProviderRequestToRerecord
    earlier: Sequence[stats.AnswerDriftProperties]
    new: Sequence[stats.AnswerDriftProperties]

    @cached_property
    def recorded_answer(self) -> stats.AnswerDriftProperties:
        return stats.extract_answer_drift_properties(self.sampled.recorded)

    @property
    def baseline(self) -> Sequence[stats.AnswerDriftProperties]:
        return self.earlier or [self.recorded_answer]

    @cached_property
    def refusals(self) -> list[str]:
        return list(dict.fromkeys(each.refusal for each in self.new if each.refusal))

    @cached_property
    def shape(self) -> list[str]:
        return stats.compare_old_and_new_answer_formats(self.baseline, self.new)

    @property
    def successful_answers(self) -> list[stats.AnswerDriftProperties]:
        return [each for each in self.new if each.is_success]

    @property
    def behaves_differently(self) -> bool:
        before, now = ({(x.tools, x.finish) for x in some} for some in (self.baseline, self.successful_answers))
        return bool(now) and before.isdisjoint(now)

    @property
    def shares_no_text_with_baseline(self) -> bool:
        before, now = ({each.text for each in some} for some in (self.baseline, self.successful_answers))
        return bool(now) and before.isdisjoint(now)


class _ModelVerdict(NamedTuple):
    model: str
    calls: Sequence[_AnswerDrift]
    p: float | None
    """Corrected for the number of models; None if there are too few answers for any small p."""

    @property
    def comparisons_with_answers(self) -> list[_AnswerDrift]:
        return [each for each in self.calls if each.successful_answers]

    @property
    def has_drifted(self) -> bool:
        return any(each.refusals or each.shape for each in self.calls) or (self.p is not None and self.p <= stats.ALPHA)


def _judge_models(found: Sequence[_AnswerDrift]) -> list[_ModelVerdict]:
    models: dict[str, list[_AnswerDrift]] = defaultdict(list)
    for each in found:
        models[each.sampled.recorded.model or each.sampled.recorded.operation].append(each)
    ps: list[float | None] = []
    for calls in models.values():
        told = [each for each in calls if len(each.successful_answers) > 1]
        pairs = [(each.baseline, each.successful_answers) for each in told]
        least = stats.compute_least_p_value([(len(old), len(new)) for old, new in pairs])
        distance = stats.measure_answer_behavior_distance
        data = [stats.compute_statistic_per_permutation(old, new, distance) for old, new in pairs]
        both = all(each.earlier for each in told)
        enough = told and least * len(models) <= stats.ALPHA
        ps.append(stats.compute_permutation_p_value(data, both=both) if enough else None)
    corrected = iter(stats.correct_p_values([p for p in ps if p is not None]))
    return [
        _ModelVerdict(model, calls, None if p is None else next(corrected))
        for (model, calls), p in zip(models.items(), ps, strict=True)
    ]


def _format_report(verdicts: Sequence[_ModelVerdict], spending: _CostLimit, code: Exit, kept: Path) -> Iterator[str]:
    store = str(kept).removesuffix(BESIDE)
    for each in verdicts:
        models = sorted({new.model for call in each.calls for new in call.successful_answers if new.model})
        was = sorted({call.recorded_answer.model for call in each.calls if call.recorded_answer.model})
        yield ""
        old, new = ", ".join(was) or "nobody knows", ", ".join(models) or "none"
        yield to_safe_line(f"{each.model}: recorded from {old}, now {new}")
        for name, attribute in (("gone", "refusals"), ("shape", "shape")):
            for call in each.calls:
                texts = (f"{call.sampled.label}: {text}" for text in getattr(call, attribute))
                yield from (f"  {name:10}{to_safe_line(text)}" for text in texts)
        yield f"  behavior  {_describe_verdict(each)}"
        for call in each.calls:
            if call.behaves_differently:
                behaviors = Counter(stats.describe_answer_behavior(new) for new in call.successful_answers)
                did = behaviors.most_common(1)[0][0]
                before = to_safe_line(f" (before: {stats.describe_answer_behavior(call.baseline[0])})")
                yield to_safe_line(f"  answered otherwise: {call.sampled.label}: {did}") + before
        words = sum(call.shares_no_text_with_baseline for call in each.calls)
        yield f"  words     {words} of {len(each.comparisons_with_answers)} calls answered in other words"
        unusable = (new for call in each.calls for new in call.new if not (new.is_success or new.refusal))
        for text, count in Counter(f"status {new.status}" for new in unusable).items():
            yield f"  no answer {count} times: {to_safe_line(text)}"
    yield ""
    yield from (f"no answer {count} times: {to_safe_line(text)}" for text, count in spending.lost.items())
    if spending.refused:
        yield f"{spending.refused} answers were not asked for: they might have cost more than --max-cost leaves."
    said = {Exit.OK: "No drift was seen", Exit.DRIFTED: "Drift", Exit.UNTOLD: "Could not tell"}[code]
    yield f"{said}; {spending.asked} answers, {spending.format()}."
    if code is Exit.DRIFTED:
        if again := _list_drifted_recordings(verdicts):
            anew = f"{format_llmproxy_command(f'rerecord {" ".join(map(str, again))}', store)} -- COMMAND"
            yield f"To record these anew, and what follows from them: {anew}"
        yield f"To take the new answers as usual: {format_llmproxy_command('drift --accept', store)}"
    elif code is Exit.UNTOLD:
        yield "More calls or runs tell more: --calls, --runs." + (f" What came is in {kept}." if spending.asked else "")


def _list_drifted_recordings(verdicts: Sequence[_ModelVerdict]) -> list[int]:
    calls = (call for each in verdicts if each.has_drifted for call in each.calls)
    return sorted(call.sampled.recorded.id or 0 for call in calls if call.successful_answers and not call.refusals)


def _describe_verdict(verdict: _ModelVerdict) -> str:
    if verdict.p is None:
        return "could not tell: too few answers"
    test = f"p {verdict.p:.3f}, permutation test within {len(verdict.comparisons_with_answers)} calls"
    return f"drift ({test})" if verdict.p <= stats.ALPHA else f"no drift seen ({test})"


def _to_json(verdicts: Sequence[_ModelVerdict], plan: _DriftPlan, spending: _CostLimit, code: Exit) -> dict[str, Any]:
    said = {Exit.OK: "no drift seen", Exit.DRIFTED: "drift", Exit.UNTOLD: "could not tell"}[code]
    return {
        "verdict": said, "asked": spending.asked, "spent_usd": str(spending.spent), "unknown_price": spending.unknown,
        "not_sent": spending.refused, "no_answer": dict(spending.lost), "left_out": dict(plan.left_out),
        "rerecord": _list_drifted_recordings(verdicts),
        "models": [
            {
                "model": each.model, "p": each.p, "drifted": each.has_drifted,
                "calls": [
                    {
                        "interaction": call.sampled.recorded.id, "cassette": call.sampled.recorded.cassette,
                        "answers": len(call.successful_answers), "earlier": len(call.earlier), "gone": call.refusals,
                        "shape": call.shape, "otherwise": call.behaves_differently,
                        "reworded": call.shares_no_text_with_baseline,
                    }
                    for call in each.calls
                ],
            }
            for each in verdicts
        ],
    }  # fmt: skip
