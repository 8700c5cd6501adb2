# ruff: noqa: E501  rows stand as they are
"""One fixed log and the bytes it has become: a change of format must be noticed, and be meant."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise

from flightlog.store.codec import FORMAT, decode, encode
from flightlog.store.rows import Encoded
from flightlog_hookspecs.content import FileBlock, TextBlock, ThinkingBlock, ToolCallBlock, text_blocks
from flightlog_hookspecs.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantDelta,
    AssistantMessage,
    BudgetAlert,
    BudgetCharged,
    BudgetDegraded,
    BudgetGranted,
    CheckpointSkipped,
    CheckpointWritten,
    CompactionEnd,
    CompactionStart,
    ContextBuilt,
    DeltaPiece,
    Event,
    GoalChecked,
    Head,
    InboxSplice,
    Lent,
    LetterTaken,
    PluginFault,
    PluginLoaded,
    PluginUnloaded,
    PluginVersion,
    Record,
    Refresh,
    RequestFailed,
    RequestHeader,
    RequestRetry,
    RequestSent,
    SessionClosed,
    SessionCreated,
    SessionOpened,
    SessionRepaired,
    Spill,
    StepEnd,
    StepStart,
    SubagentSettled,
    SubagentSpawned,
    TaskAmended,
    TaskResynced,
    TaskState,
    TaskSubmitted,
    TimerCancelled,
    TimerFired,
    TimerSet,
    ToolCall,
    ToolProgress,
    ToolResult,
    ToolSpec,
    TurnEnd,
    TurnStart,
    UnknownEvent,
    UserMessage,
)
from support import values

UID = "0123456789abcdef" * 2
EVENTS: tuple[Event, ...] = (
    SessionCreated(uid=UID, title="Ünïcode"),
    SessionOpened(pid=1, host="host", kernel_version="0.1.0", plugins=(PluginVersion(name="files", version="1"),)),
    InboxSplice(slot="next_turn", start=0, message_id="m1", cause="accepted", content=(TextBlock(text="hi"),)),
    TurnStart(),
    InboxSplice(slot="next_turn", start=0, removed=1, message_id="m1", cause="claimed"),
    StepStart(),
    UserMessage(message_id="m1", content=(TextBlock(text="hi"),)),
    RequestHeader(
        head=Head(
            adapter="a",
            model="m",
            system="be brief",
            tools=(ToolSpec(name="look", description="Look.", parameters='{"type":"object"}'),),
        ),
        reason="first",
    ),
    RequestSent(attempt=1, header_seq=8, messages=1, sha256="00"),
    AssistantDelta(
        attempt=1, block=0, type="text", pieces=(DeltaPiece(at_ms=0, text="I w"), DeltaPiece(at_ms=3, text="\0"))
    ),
    RequestFailed(attempt=1, failure="cut", message="the stream ended", retryable=True),
    RequestRetry(attempt=2, delay_ms=500),
    RequestSent(attempt=2, header_seq=8, messages=1, sha256="00"),
    AssistantMessage(
        attempt=2,
        content=(
            ThinkingBlock(text="hm", replay='{"signature":"s"}'),
            TextBlock(text="I will "),
            TextBlock(text="look."),
            ToolCallBlock(call_id="c1", name="look", arguments='{"at":"sky"}'),
        ),
        finish="tool_calls",
        input_tokens=12,
        output_tokens=7,
    ),
    ToolCall(
        position=0,
        call_id="c1",
        name="look",
        arguments='{"at":"sky"}',
        invocation_id=f"{UID}.1.1.0",
        message_seq=14,
        mode="parallel",
        effect="read",
        plugin="files",
        plugin_version="1",
    ),
    ToolResult(
        position=0,
        call_id="c1",
        name="look",
        message_seq=14,
        outcome="ok",
        content=(TextBlock(text="blue\ud800"),),
        call_seq=15,
        duration_us=42,
        spill=Spill(sha256="ab", bytes=3),
    ),
    StepEnd(),
    UnknownEvent(kind="newer/thing", data='{"a":[1,2.5,null]}'),
    TurnEnd(reason="error", code="auth", message="x" * 70_000),
    ApprovalAsked(position=0, call_id="c1", name="look", message_seq=14, question="may it?", guard="ask"),
    ApprovalDecided(asked_seq=20, decision="denied", by="ada", reason="no"),
    PluginFault(plugin="files", hook="before_tool", error="it broke"),
    SessionClosed(),
    InboxSplice(
        slot="next_step", start=0, message_id="m2", cause="accepted", content=(TextBlock(text="psst"),), wakes=False
    ),
    LetterTaken(letter_id="l1", verb="approve", outcome="refused", reason="no question was asked at seq 7"),
    LetterTaken(letter_id="l2", verb="steer", outcome="obeyed"),
    SessionRepaired(repair="r1", rule="hash-chain", detail="it was changed", dropped=2, digest="ab", backup="a.db.bak"),
    PluginLoaded(plugin="files", version="2"),
    PluginUnloaded(plugin="files", version="2"),
    InboxSplice(
        slot="next_turn",
        start=0,
        message_id="m3",
        cause="accepted",
        content=(FileBlock.of(b"GIF89a", name="cat.gif"), FileBlock.of(b"{}", media_type="application/json")),
    ),
    SubagentSpawned(child="s/a", subagent="a", depth=1, invocation_id=f"{UID}.1.1.0", task="look", background=True),
    SubagentSettled(child="s/a", invocation_id=f"{UID}.1.1.0", reason="completed", result="blue"),
    SessionCreated(uid=UID, parent_session="s", parent_uid="p", depth=1, tools=("look",)),
    TaskSubmitted(goal="look", model="a:m", parameters='{"at":"sky"}', task_class="core", due_us=1, agent="sky 1"),
    TaskAmended(goal="look up", by="ada"),
    TaskState(state="paused", cause="person", message="by ada", goal_met=False, resume_at_us=2),
    GoalChecked(check="tests", met=False, missing="two fail", plugin="p", plugin_version="1"),
    ToolCall(
        position=0,
        call_id="c1",
        name="look",
        arguments='{"at":"sky","why":"to see"}',
        invocation_id=f"{UID}.1.1.0",
        message_seq=9,
        mode="parallel",
        effect="read",
        plugin="p",
        plugin_version="1",
        key='{"at": "sky"}',
    ),
    TimerSet(
        timer="timer-1", due_us=3, content=text_blocks("up"), every_us=2_000_000, until_us=9_000_000, times=4, by="ada"
    ),
    TimerFired(timer="timer-1", due_us=3, missed=1, next_us=4_000_003),
    TimerCancelled(timer="timer-1", by="ada"),
    TaskResynced(
        before="0a",
        after="0b",
        changed=("goal",),
        refreshed=(Refresh(call_seq=9, came="changed", answer="0c"), Refresh(call_seq=7, came="failed")),
        left_out=1,
        checkpoint_seq=4,
    ),
    CheckpointWritten(level="light", phase="think", steps=2, calls=3, tokens=40, recoveries=1, action="0d"),
    CheckpointWritten(
        level="heavy",
        phase="observe",
        steps=1,
        no_progress=2,
        fingerprint="0a",
        history="0e",
        compaction=3,
        results=(9, 10),
        summary="Done: 1 steps. Next: ask.",
    ),
    CheckpointSkipped(checkpoint_seq=4, why="steps 2, the log says 1"),
    CompactionStart(level="summarise", from_seq=3, to_seq=9, tokens_before=5, compactor="c", instruction="In short."),
    UserMessage(message_id="s1", content=(TextBlock(text="so far"),), source="summary", replaces_from=3, replaces_to=9),
    CompactionEnd(outcome="done", tokens_after=2, input_tokens=7),
    BudgetGranted(card="calls:look", most=3, by="ada"),
    BudgetAlert(card="tokens", used=8, most=10, level="exceeded", then="pauses", message="tokens: 8", resume_at_us=9),
    BudgetDegraded(move="shrink", reason="8 of 10", context_tokens=4, put_off=("the moon",), model="a:s"),
    ContextBuilt(attempt=1, model="a:m", tokens=40, head_tokens=7, messages=2, most=100),
    SubagentSpawned(
        child="c", subagent="b", depth=1, invocation_id="i", task="", tokens=9, lent=(Lent(card="calls", amount=2),)
    ),
    BudgetCharged(card="calls", amount=1, invocation_id="i"),
    ToolProgress(position=0, call_id="call_1", name="look", call_seq=14, text="half way"),
)
GOLDEN = (
    ('{"uid":"0123456789abcdef0123456789abcdef","title":"Ünïcode"}', "c6532fcb80064de3"),
    ('{"pid":1,"host":"host","kernel_version":"0.1.0","plugins":[{"name":"files","version":"1"}]}', "d37212b207691cbd"),
    (
        '{"slot":"next_turn","start":0,"message_id":"m1","cause":"accepted","content":[{"type":"text","chars":2}]}',
        "e7c932aa2343fb1c",
    ),
    ("{}", "c63efd0faa732197"),
    ('{"slot":"next_turn","start":0,"message_id":"m1","cause":"claimed","removed":1}', "9a392ebc0fef8e9f"),
    ("{}", "ffbfeb1b3860bd09"),
    ('{"message_id":"m1","content":[{"type":"text","chars":2}]}', "2e63d59f48b2f887"),
    (
        '{"head":{"adapter":"a","model":"m","system":"be brief","tools":[{"name":"look","description":"Look.","parameters":"{\\"type\\":\\"object\\"}"}]},"reason":"first"}',
        "cc60b0d10ebaee80",
    ),
    ('{"attempt":1,"header_seq":8,"messages":1,"sha256":"00"}', "46882958ad33701c"),
    (
        '{"attempt":1,"block":0,"type":"text","sha256":"bb472e0a2f410f3f53da1ac2ca32c506f22ece01a07202d53f032f19a2d435c5","exact":["I w","\\u0000"]}',
        "d51d8ea2b83b1d88",
    ),
    ('{"attempt":1,"failure":"cut","retryable":true}', "3d36533400cf37dc"),
    ('{"attempt":2,"delay_ms":500}', "9edc5481b1bf9520"),
    ('{"attempt":2,"header_seq":8,"messages":1,"sha256":"00"}', "5623ecd37d17564a"),
    (
        '{"attempt":2,"content":[{"text":"hm","replay":"{\\"signature\\":\\"s\\"}","type":"thinking"},{"type":"text","chars":7},{"type":"text","chars":5},{"call_id":"c1","name":"look","arguments":"{\\"at\\":\\"sky\\"}","type":"tool_call"}],"finish":"tool_calls","input_tokens":12,"output_tokens":7}',
        "d6645e6dd7c3f2ef",
    ),
    (
        '{"position":0,"call_id":"c1","name":"look","invocation_id":"0123456789abcdef0123456789abcdef.1.1.0","message_seq":14,"mode":"parallel","effect":"read","plugin":"files","plugin_version":"1"}',
        "938ad72221be3113",
    ),
    (
        '{"position":0,"call_id":"c1","name":"look","message_seq":14,"outcome":"ok","content":[{"text":"blue\\ud800","type":"text"}],"call_seq":15,"duration_us":42,"spill":{"sha256":"ab","bytes":3}}',
        "b3d76feec17d4de4",
    ),
    ("{}", "89174965b29715bc"),
    ('{"a":[1,2.5,null]}', "3621a779b1a55bb3"),
    ('{"reason":"error","code":"auth"}', "b506026ee5847c1c"),
    ('{"position":0,"call_id":"c1","name":"look","message_seq":14,"guard":"ask"}', "923544559b56ce2f"),
    ('{"asked_seq":20,"decision":"denied","by":"ada","reason":"no"}', "04bfe1fc860822b0"),
    ('{"plugin":"files","hook":"before_tool"}', "aff33331de5264e8"),
    ("{}", "0a230de077914ead"),
    (
        '{"slot":"next_step","start":0,"message_id":"m2","cause":"accepted","content":[{"type":"text","chars":4}],"wakes":false}',
        "6b8a241a602e970a",
    ),
    ('{"letter_id":"l1","verb":"approve","outcome":"refused"}', "6a329662a1dec849"),
    ('{"letter_id":"l2","verb":"steer","outcome":"obeyed"}', "61ffc8b028727db8"),
    ('{"repair":"r1","rule":"hash-chain","dropped":2,"digest":"ab","backup":"a.db.bak"}', "071bcccf086c3a59"),
    ('{"plugin":"files","version":"2"}', "88b42b803c812456"),
    ('{"plugin":"files","version":"2"}', "d34f829101f3a0f7"),
    (
        '{"slot":"next_turn","start":0,"message_id":"m3","cause":"accepted","content":[{"media_type":"image/gif","sha256":"610f5ae4d76e332636a17bd357fd6ce99029316a99d320280d4d77a746bf29e8","size_bytes":6,"name":"cat.gif","type":"file"},{"media_type":"application/json","sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size_bytes":2,"type":"file"}]}',
        "ed0435cf290ade04",
    ),
    (
        '{"child":"s/a","subagent":"a","depth":1,"invocation_id":"0123456789abcdef0123456789abcdef.1.1.0","background":true}',
        "39b67e21fc2e987f",
    ),
    (
        '{"child":"s/a","invocation_id":"0123456789abcdef0123456789abcdef.1.1.0","reason":"completed"}',
        "d3313e86bd358685",
    ),
    (
        '{"uid":"0123456789abcdef0123456789abcdef","parent_session":"s","parent_uid":"p","depth":1,"tools":["look"]}',
        "22575c7229c1200d",
    ),
    (
        '{"model":"a:m","parameters":"{\\"at\\":\\"sky\\"}","task_class":"core","due_us":1,"agent":"sky 1"}',
        "b85eb5b5e2a0d739",
    ),
    ('{"by":"ada"}', "89877a4758a61932"),
    ('{"state":"paused","cause":"person","goal_met":false,"resume_at_us":2}', "bb6cf452c75cd1e6"),
    ('{"check":"tests","met":false,"plugin":"p","plugin_version":"1"}', "acedaa28d9bc2885"),
    (
        '{"position":0,"call_id":"c1","name":"look","invocation_id":"0123456789abcdef0123456789abcdef.1.1.0","message_seq":9,"mode":"parallel","effect":"read","plugin":"p","plugin_version":"1","key":"{\\"at\\": \\"sky\\"}"}',
        "f5715ef7cf77901c",
    ),
    (
        '{"timer":"timer-1","due_us":3,"content":[{"type":"text","chars":2}],"every_us":2000000,"until_us":9000000,"times":4,"by":"ada"}',
        "b969d3febe98c155",
    ),
    ('{"timer":"timer-1","due_us":3,"missed":1,"next_us":4000003}', "0d30702d106d1877"),
    ('{"timer":"timer-1","by":"ada"}', "8b2db804165258cc"),
    (
        '{"before":"0a","after":"0b","changed":["goal"],"refreshed":[{"call_seq":9,"came":"changed","answer":"0c"},{"call_seq":7,"came":"failed"}],"left_out":1,"checkpoint_seq":4}',
        "27e65286f1058ff2",
    ),
    (
        '{"level":"light","phase":"think","steps":2,"calls":3,"tokens":40,"recoveries":1,"action":"0d"}',
        "d61d5b326e42362f",
    ),
    (
        '{"level":"heavy","phase":"observe","steps":1,"no_progress":2,"fingerprint":"0a","history":"0e","compaction":3,"results":[9,10]}',
        "10def1f6c0d50354",
    ),
    ('{"checkpoint_seq":4}', "299e74e216d84edd"),
    (
        '{"level":"summarise","from_seq":3,"to_seq":9,"tokens_before":5,"compactor":"c"}',
        "a20305fa511a4144",
    ),
    (
        '{"message_id":"s1","content":[{"type":"text","chars":6}],"source":"summary","replaces_from":3,"replaces_to":9}',
        "6919c3fed9d7ad0d",
    ),
    ('{"outcome":"done","tokens_after":2,"input_tokens":7}', "a3a6a442c77c1e9c"),
    ('{"card":"calls:look","most":3,"by":"ada"}', "2580dc3ceb64d9ba"),
    ('{"card":"tokens","used":8,"most":10,"level":"exceeded","then":"pauses","resume_at_us":9}', "df25bf5c74e9750b"),
    ('{"move":"shrink","context_tokens":4,"put_off":["the moon"],"model":"a:s"}', "6ee34702da99f11e"),
    ('{"attempt":1,"model":"a:m","tokens":40,"head_tokens":7,"messages":2,"most":100}', "41f190172946715b"),
    (
        '{"child":"c","subagent":"b","depth":1,"invocation_id":"i","task":"","tokens":9,"lent":[{"card":"calls","amount":2}]}',
        "4bb505a545cea43f",
    ),
    ('{"card":"calls","amount":1,"invocation_id":"i"}', "26598e267f8ad27a"),
    ('{"position":0,"call_id":"call_1","name":"look","call_seq":14}', "a3933ed5cace5012"),
)
"""Of each row its data and the beginning of its digest."""


def rows() -> list[Encoded]:
    digest, made = b"", list[Encoded]()
    for seq, event in enumerate(EVENTS, 1):
        record = Record(
            session="s",
            seq=seq,
            at_us=1_700_000_000_000_000 + seq,
            turn=1 if 4 <= seq <= 19 else None,
            step=1 if 6 <= seq <= 17 else None,
            epoch=min(seq - 1, 1),
            event=event,
            ignorable=isinstance(event, UnknownEvent),
        )
        made.append(encode(record, 1, UID, digest))
        digest = made[-1].row.digest
    return made


def test_a_fixed_log_is_written_as_it_always_was() -> None:
    assert FORMAT == 1
    for encoded, golden in zip(rows(), GOLDEN, strict=True):
        assert (encoded.row.data, encoded.row.digest.hex()[:16]) == golden, encoded.row.kind


def test_every_known_kind_is_in_the_fixed_log() -> None:
    assert {type(event) for event in EVENTS} == set(values.EVENT_CLASSES)


def test_what_was_written_then_is_read_now() -> None:
    for encoded, (data, _), event in zip(rows(), GOLDEN, EVENTS, strict=True):
        read = decode(encoded.row._replace(data=data), "s", dict(encoded.blobs).__getitem__, list(encoded.pieces))
        assert read.event == event


def test_the_digest_is_what_the_documentation_says() -> None:
    """sha256 over the digest before, then format, uid and the stored facts with their lengths, then the bytes."""
    for (before, *_), (row, *_) in pairwise(rows()):
        kind, data, text = row.kind.encode(), row.data.encode(), (row.text or "").encode()
        blob = row.text_blob or b""
        facts = f"1;{UID};{row.seq};{row.at};{row.turn};{row.step};{row.epoch};{row.ignorable};"
        lengths = f"{len(kind)};{len(data)};{row.text is not None}{len(text)};{len(blob)};"
        stated = before.digest + (facts + lengths).encode() + kind + data + text + blob
        assert row.digest == sha256(stated).digest()
