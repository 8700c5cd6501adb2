-- The public SQL interface: stable names, plain columns only. Each has a Python twin in core/projections.py.

-- view: sessions
-- One row a session: identity, length, and how its newest turn stands. A child names its `parent`, and how many levels down it is.
CREATE VIEW sessions AS
SELECT k.name AS session, k.uid, c.name AS title, c.at AS created_at, l.at AS last_at, l.seq AS last_seq, l.epoch,
       t.turn AS last_turn, CASE WHEN t.turn IS NULL THEN NULL ELSE coalesce(e.status, 'open') END AS last_reason,
       c.status AS parent, coalesce(c.attempt, 0) AS depth
FROM session_keys k
CROSS JOIN events c ON c.session = k.session AND c.seq = 1  -- CROSS: from few sessions to their rows, never the other way
CROSS JOIN events l ON l.id = (SELECT id FROM events WHERE session = k.session ORDER BY seq DESC LIMIT 1)
LEFT JOIN events t ON t.session = k.session AND t.step IS NULL AND t.kind = 'turn/start'
  AND t.turn = (SELECT max(turn) FROM events WHERE session = k.session  -- the condition of events_bracket: its last entry, however long the turn
                AND (kind = 'turn/start' OR kind = 'turn/end' OR kind = 'step/end'
                  OR kind = 'request/failed' OR kind = 'assistant/message' OR kind = 'tool/result'))
LEFT JOIN events e ON e.session = k.session AND e.turn = t.turn AND e.step IS NULL AND e.kind = 'turn/end';

-- view: turns
-- One row a turn; `reason` is 'open' until its turn/end.
CREATE VIEW turns AS
SELECT k.name AS session, s.turn, s.seq, s.at AS started_at, e.at AS ended_at, coalesce(e.status, 'open') AS reason, e.text AS message
FROM events s JOIN session_keys k USING(session)
LEFT JOIN events e ON e.session = s.session AND e.turn = s.turn AND e.step IS NULL AND e.kind = 'turn/end'
WHERE s.kind = 'turn/start';

-- view: steps
-- One row a step; `ended_at` is NULL while it is open.
CREATE VIEW steps AS
SELECT k.name AS session, s.turn, s.step, s.seq, s.at AS started_at, e.at AS ended_at
FROM events s JOIN session_keys k USING(session)
LEFT JOIN events e ON e.session = s.session AND e.turn = s.turn AND e.step = s.step AND e.kind = 'step/end'
WHERE s.kind = 'step/start';

-- view: messages
-- What the model is sent, in order: (place, position). A tool result stands under the message that
-- asked for it, in call order, whatever order the tools finished in. What a compaction covered is left out; its summary
-- stands in its place.
CREATE VIEW messages AS
SELECT k.name AS session, e.place, e.position, e.seq, e.turn, e.step, e.kind, e.role, e.message_id, e.call_id, e.name, e.status,
       CASE WHEN e.text_blob IS NULL THEN e.text ELSE (SELECT CAST(b.bytes AS TEXT) FROM blobs b WHERE b.digest = e.text_blob) END AS text,
       e.data
FROM events e JOIN session_keys k USING(session)
WHERE e.place IS NOT NULL
  AND NOT EXISTS(SELECT 1 FROM events s WHERE s.session = e.session AND s.kind = 'user/message' AND s.ref_seq IS NOT NULL
                 AND s.place <= e.place AND s.ref_seq >= e.place AND s.seq > e.seq)
  AND NOT EXISTS(SELECT 1 FROM events r WHERE r.session = e.session AND r.place IS NOT NULL AND r.place = e.place
                 AND r.position = e.position AND +r.seq > e.seq)
ORDER BY e.session, e.place, e.position;

-- view: inbox
-- Messages accepted and not yet in a turn, in the order in which they will be taken: slot next_step before
-- next_turn. `seq` is the row that put the message there or edited it last.
CREATE VIEW inbox AS
SELECT k.name AS session, i.seq, i.slot, i.message_id, i.at, i.text
FROM events i JOIN session_keys k USING(session)
WHERE i.slot IS NOT NULL AND i.role = 'user'
  AND NOT EXISTS(SELECT 1 FROM events x WHERE x.session = i.session AND x.message_id = i.message_id AND +x.seq > i.seq AND x.slot IS NOT NULL)
ORDER BY i.session, i.slot,  -- a slot is a queue: messages join at its end, and an edited one keeps its place
         (SELECT max(a.seq) FROM events a WHERE a.session = i.session AND a.message_id = i.message_id AND a.slot IS NOT NULL AND a.status = 'accepted');

-- view: requests
-- One row an attempt; `outcome` is 'answered', a failure kind, or 'open'. `model` is adapter:model.
CREATE VIEW requests AS
SELECT k.name AS session, r.turn, r.step, r.attempt, r.seq, r.at AS sent_at, h.name AS model, r.ref_seq AS header_seq, r.status AS purpose,
       CASE WHEN a.seq IS NOT NULL THEN 'answered' ELSE coalesce(f.status, 'open') END AS outcome,
       coalesce(a.at, f.at) AS settled_at
FROM events r JOIN session_keys k USING(session)
JOIN events h ON h.session = r.session AND h.seq = r.ref_seq
LEFT JOIN events a ON a.session = r.session AND a.turn = r.turn AND a.step = r.step AND a.kind = 'assistant/message' AND a.attempt = r.attempt
LEFT JOIN events f ON f.session = r.session AND f.turn = r.turn AND f.step = r.step AND f.kind = 'request/failed' AND f.attempt = r.attempt
WHERE r.kind = 'request/sent';

-- view: deltas
-- Every piece of every stream as it arrived, superseded attempts included. `at` is its own time.
CREATE VIEW deltas AS
SELECT k.name AS session, e.turn, e.step, e.attempt, e.position AS block, e.name AS type, d.seq, d.i, e.at + d.at_ms * 1000 AS at, d.text
FROM delta_texts d JOIN events e USING(session, seq) JOIN session_keys k USING(session);

-- view: tool_calls
-- Every call of every message that was started or answered, once: with its newest start. `outcome` is 'open' while it runs.
CREATE VIEW tool_calls AS
SELECT k.name AS session, c.turn, c.step, c.position, c.call_id, c.name, c.status AS effect, c.seq AS call_seq, r.seq AS result_seq,
       coalesce(r.status, 'open') AS outcome, r.duration_us, c.text AS arguments, r.text AS result
FROM events c JOIN session_keys k USING(session)
LEFT JOIN events r ON r.session = c.session AND r.turn = c.turn AND r.step = c.step AND r.kind = 'tool/result' AND r.position = c.position
  AND r.attempt IS NULL  -- there: the row of the result that a shorter one stands for
WHERE c.kind = 'tool/call' AND CASE WHEN r.seq IS NOT NULL THEN r.ref_seq = c.seq ELSE NOT EXISTS(
  SELECT 1 FROM events n WHERE n.session = c.session AND n.seq > c.seq AND n.kind = 'tool/call'  -- few rows follow a call that is open
    AND n.turn = c.turn AND n.step = c.step AND n.position = c.position) END
UNION ALL
SELECT k.name, r.turn, r.step, r.position, r.call_id, r.name, NULL, NULL, r.seq, r.status, r.duration_us, NULL, r.text
FROM events r JOIN session_keys k USING(session)
WHERE r.kind = 'tool/result' AND r.ref_seq IS NULL AND r.attempt IS NULL;

-- view: approvals
-- Every question put to a person; `decision` is 'open' until the first answer, which is the one that counts.
CREATE VIEW approvals AS
SELECT k.name AS session, a.turn, a.step, a.position, a.seq, a.call_id, a.name, a.status AS guard, a.text AS question,
       coalesce(d.status, 'open') AS decision, d.name AS decided_by, d.seq AS decided_seq
FROM events a JOIN session_keys k USING(session)
LEFT JOIN events d ON d.id = (SELECT id FROM events WHERE session = a.session AND kind = 'approval/decided' AND ref_seq = a.seq ORDER BY seq LIMIT 1)
WHERE a.kind = 'approval/asked';

-- view: plugin_errors
-- What plugins did wrong; each cost only the call it belongs to.
CREATE VIEW plugin_errors AS
SELECT k.name AS session, e.seq, e.at, e.turn, e.step, e.name AS plugin, e.status AS hook, e.text AS error
FROM events e JOIN session_keys k USING(session)
WHERE e.kind = 'plugin/error';

-- view: usage
-- Tokens and costs, one row a turn and currency. `cost_pico` is in 10^-12 of `currency`. Both are NULL in the row
-- of what nobody can price: attempts without an answer, interrupted or uncounted answers, those without a price.
-- A `cost_pico` that is NULL beside a currency is more than eight million of it.
-- The turns that a fork took over from its origin are its origin's.
CREATE VIEW usage AS
SELECT k.name AS session, r.turn, count(*) AS attempts, count(coalesce(a.seq, r.input_tokens)) AS answers,
       coalesce(sum(coalesce(a.input_tokens, r.input_tokens)), 0) AS input_tokens,
       coalesce(sum(coalesce(a.output_tokens, r.output_tokens)), 0) AS output_tokens,
       coalesce(sum(coalesce(a.cached_tokens, r.cached_tokens)), 0) AS cached_tokens,
       coalesce(sum(coalesce(a.cache_write_tokens, r.cache_write_tokens)), 0) AS cache_write_tokens,
       -- In two halves, for a sum() over 64 bits fails the whole query; here it is NULL.
       CASE WHEN sum(coalesce(a.cost_pico, r.cost_pico) >> 32) < 2000000000
            THEN sum(coalesce(a.cost_pico, r.cost_pico) >> 32) * 4294967296 + sum(coalesce(a.cost_pico, r.cost_pico) & 4294967295)
       END AS cost_pico,
       coalesce(a.currency, r.currency) AS currency
FROM events r JOIN session_keys k USING(session)
JOIN events c ON c.session = r.session AND c.seq = 1
LEFT JOIN events a ON a.session = r.session AND a.turn = r.turn AND a.step = r.step AND a.kind = 'assistant/message' AND a.attempt = r.attempt
WHERE (r.kind = 'request/sent' OR r.kind = 'compaction/end' AND r.input_tokens IS NOT NULL)  -- of a summary
  AND r.turn > coalesce(c.position, 0)  -- there: the turn that a fork was made at
GROUP BY k.name, r.turn, coalesce(a.currency, r.currency);  -- by the name: so a question about one session reads that session only

-- view: timers
-- Every timer that was set. `state` is open, fired (for the last time) or cancelled; an open one is due next at `due_at`
-- and repeats every `every_us`, if that is set. It has fired `runs` times, last at `fired_at`, and `missed` more runs had
-- come due by then. `text` holds the words of its message.
CREATE VIEW timers AS
SELECT k.name AS session, s.name AS timer,
       CASE WHEN c.id IS NOT NULL THEN 'cancelled' WHEN f.id IS NOT NULL AND f.due_at IS NULL THEN 'fired' ELSE 'open' END AS state,
       CASE WHEN c.id IS NOT NULL THEN NULL WHEN f.id IS NOT NULL THEN f.due_at ELSE s.due_at END AS due_at, s.duration_us AS every_us,
       (SELECT count(*) FROM events e WHERE e.session = s.session AND e.kind = 'timer/fired' AND e.name = s.name) AS runs,
       (SELECT coalesce(sum(position), 0) FROM events e WHERE e.session = s.session AND e.kind = 'timer/fired' AND e.name = s.name) AS missed,
       f.at AS fired_at, s.at AS set_at, s.status AS set_by, s.text
FROM events s JOIN session_keys k USING(session)
LEFT JOIN events f ON f.id = (SELECT id FROM events WHERE session = s.session AND kind = 'timer/fired' AND name = s.name ORDER BY seq DESC LIMIT 1)
LEFT JOIN events c ON c.id = (SELECT id FROM events WHERE session = s.session AND kind = 'timer/cancelled' AND name = s.name LIMIT 1)
WHERE s.kind = 'timer/set';

-- view: tasks
-- One row a task, which is named like its session: where it stands, since when and why. `goal` is what is to be reached now, `goal_met` what the goal check
-- has found last (1, 0, or NULL where none was asked about this goal). `recoveries` counts how often it was taken up from a dead worker. `checkpoint` is the row of the newest
-- one that was not skipped, and has `phase` (observe, think, act), `tokens_used` and `no_progress_count`; `fingerprint` is that of the newest which has one.
-- `kernel_version` and `plugins` are the newest owner's. `due_at` is when it begins or goes on by itself.
CREATE VIEW tasks AS
SELECT k.name AS session, s.role AS class, coalesce(t.status, 'pending') AS state, t.name AS cause, t.text AS message,
       CASE WHEN a.id IS NULL OR a.seq < g.seq THEN g.position END AS goal_met,
       coalesce(a.text, s.text) AS goal, s.name AS model, s.status AS agent, o.name AS kernel_version, o.status AS plugins, c.role AS phase,
       (SELECT count(*) FROM events e WHERE e.session = s.session AND e.kind = 'step/end') AS step_count, s.attempt AS max_steps,
       max(0, s.attempt - (SELECT count(*) FROM events e WHERE e.session = s.session AND e.kind = 'step/end')) AS steps_left,
       c.input_tokens AS tokens_used, c.attempt AS no_progress_count,
       (SELECT count(*) FROM events e WHERE e.session = s.session AND e.kind = 'task/state' AND e.status = 'recovering') AS recoveries,
       c.seq AS checkpoint, f.name AS fingerprint,
       s.at AS submitted_at, coalesce(t.at, s.at) AS changed_at, CASE WHEN t.id IS NULL THEN s.due_at ELSE t.due_at END AS due_at
FROM events s JOIN session_keys k USING(session)
LEFT JOIN events t ON t.id = (SELECT id FROM events WHERE session = s.session AND kind = 'task/state' ORDER BY seq DESC LIMIT 1)
LEFT JOIN events a ON a.id = (SELECT id FROM events WHERE session = s.session AND kind = 'task/amended' ORDER BY seq DESC LIMIT 1)
LEFT JOIN events g ON g.id = (SELECT id FROM events WHERE session = s.session AND kind = 'goal/checked' ORDER BY seq DESC LIMIT 1)
LEFT JOIN events o ON o.id = (SELECT id FROM events WHERE session = s.session AND kind = 'session/opened' ORDER BY seq DESC LIMIT 1)
LEFT JOIN events c ON c.id = (SELECT w.id FROM events w WHERE w.session = s.session AND w.kind = 'checkpoint/written'
  AND NOT EXISTS(SELECT 1 FROM events x WHERE x.session = w.session AND x.kind = 'checkpoint/skipped' AND x.ref_seq = w.seq) ORDER BY w.seq DESC LIMIT 1)
LEFT JOIN events f ON f.id = (SELECT w.id FROM events w WHERE w.session = s.session AND w.kind = 'checkpoint/written' AND w.name IS NOT NULL
  AND NOT EXISTS(SELECT 1 FROM events x WHERE x.session = w.session AND x.kind = 'checkpoint/skipped' AND x.ref_seq = w.seq) ORDER BY w.seq DESC LIMIT 1)
WHERE s.kind = 'task/submitted';

-- view: checkpoints
-- How far each task had come, by the log's own count: `level` light at each end of a step, heavy before and after calls, archive at its start and its end.
-- `fingerprint` and `history` (what the model saw) stand in the last two only. `skipped` says in what one disagreed with the log, and was not gone on from.
-- `compaction` is the row of the one in force. `kernel_version` and `plugins` are those of the owner who wrote it.
CREATE VIEW checkpoints AS
SELECT k.name AS session, c.seq, c.at, c.turn, c.step, c.status AS level, c.role AS phase, c.position AS steps, max(0, s.attempt - c.position) AS steps_left,
       c.input_tokens AS tokens,
       (SELECT count(*) FROM events e WHERE e.session = c.session AND e.kind = 'task/state' AND e.status = 'recovering' AND e.seq < c.seq) AS recoveries,
       c.call_id AS action, c.attempt AS no_progress, c.name AS fingerprint, c.message_id AS history, c.ref_seq AS compaction, c.text AS summary,
       (SELECT x.text FROM events x WHERE x.session = c.session AND x.kind = 'checkpoint/skipped' AND x.ref_seq = c.seq ORDER BY x.seq LIMIT 1) AS skipped,
       o.name AS kernel_version, o.status AS plugins
FROM events c JOIN session_keys k USING(session)
JOIN events s ON s.session = c.session AND s.kind = 'task/submitted'
LEFT JOIN events o ON o.id = (SELECT id FROM events WHERE session = c.session AND kind = 'session/opened' AND seq < c.seq ORDER BY seq DESC LIMIT 1)
WHERE c.kind = 'checkpoint/written';

-- view: budgets
-- One row a card of each session that has a budget: `most` may be used, `used` is, `left` remains, never less than 0. Tokens, counts, or seconds (`active_s`, of the
-- day of the newest checkpoint). `used` is NULL for what is counted anew in each step. `warned` and `exceeded` are the rows of the newest alerts, `degraded` that of the newest move.
CREATE VIEW budgets AS
SELECT session, card, most, used, max(0, most - used) AS left, warned, exceeded, degraded
FROM (
  SELECT k.name AS session, g.name AS card, g.position AS most,
         CASE WHEN g.name IN ('step_tokens', 'step_s', 'tools_at_once') THEN NULL
              WHEN g.name = 'active_s' THEN coalesce((SELECT c.duration_us FROM events c WHERE c.session = g.session AND c.kind = 'checkpoint/written' ORDER BY c.seq DESC LIMIT 1), 0) / 1000000
              ELSE (SELECT coalesce(sum(
                CASE WHEN g.name = 'tokens' THEN CASE WHEN e.kind = 'compaction/start' THEN CASE WHEN e.lost THEN e.input_tokens END ELSE e.charged END
                     WHEN g.name = 'summary_tokens' THEN CASE WHEN e.kind = 'compaction/end' THEN e.charged WHEN e.lost THEN e.input_tokens END
                     WHEN e.kind = 'budget/charged' THEN CASE WHEN e.name = g.name THEN e.position END
                     WHEN g.name = 'requests' THEN e.kind = 'request/sent' OR e.kind = 'compaction/start'
                     WHEN g.name LIKE 'requests:%' THEN (e.kind = 'request/sent' OR e.kind = 'compaction/start') AND substr(e.model, 1, length(g.name) - 8) = substr(g.name, 10) || ':'
                     WHEN g.name = 'calls' THEN e.kind = 'tool/call'
                     WHEN g.name LIKE 'calls:%' THEN e.kind = 'tool/call' AND e.name = substr(g.name, 7)
                     WHEN g.name = 'retries' THEN e.kind = 'request/failed' AND e.status <> 'interrupted'
                     WHEN g.name = 'subagents' THEN e.kind = 'subagent/spawned' END), 0)
              FROM (SELECT u.kind, u.name, u.position, u.status, u.charged, u.input_tokens,
                           CASE u.kind WHEN 'request/sent' THEN (SELECT h.name FROM events h WHERE h.session = u.session AND h.seq = u.ref_seq)
                                       WHEN 'compaction/start' THEN u.name END AS model,
                           u.kind = 'compaction/start' AND (SELECT n.kind FROM events n WHERE n.session = u.session AND n.seq > u.seq  -- its owner died
                             AND (n.kind = 'compaction/end' OR n.kind = 'session/opened') ORDER BY n.seq LIMIT 1) = 'session/opened' AS lost
                    FROM events u WHERE u.session = g.session
                      AND (u.kind = 'assistant/message' OR u.kind = 'request/sent' OR u.kind = 'request/failed' OR u.kind = 'compaction/end'
                        OR u.kind = 'compaction/start' AND u.status = 'summarise' OR u.kind = 'tool/call' AND u.attempt IS NULL  -- there: it started again
                        OR u.kind = 'subagent/spawned' OR u.kind = 'subagent/settled' OR u.kind = 'budget/charged')) e) END AS used,
         (SELECT max(a.seq) FROM events a WHERE a.session = g.session AND a.kind = 'budget/alert' AND a.name = g.name AND a.status = 'warning') AS warned,
         (SELECT max(a.seq) FROM events a WHERE a.session = g.session AND a.kind = 'budget/alert' AND a.name = g.name AND a.status = 'exceeded') AS exceeded,
         (SELECT max(d.seq) FROM events d WHERE g.name = 'tokens' AND d.session = g.session AND d.kind = 'budget/degraded') AS degraded
  FROM events g JOIN session_keys k USING(session)
  WHERE g.kind = 'budget/granted' AND g.seq = (SELECT max(n.seq) FROM events n WHERE n.session = g.session AND n.kind = 'budget/granted' AND n.name = g.name)
);

-- view: timeline
-- The flight log for reading: one line an event, in the order they were written. `at` is UTC.
CREATE VIEW timeline AS
SELECT k.name AS session, e.seq,
       strftime('%Y-%m-%d %H:%M:%S', e.at / 1000000, 'unixepoch') || printf('.%03d', e.at / 1000 % 1000) AS at, e.turn, e.step, e.kind,
       coalesce(e.name, e.status) AS what, e.status, substr(e.text, 1, 80) AS text
FROM events e JOIN session_keys k USING(session)
ORDER BY e.id;
