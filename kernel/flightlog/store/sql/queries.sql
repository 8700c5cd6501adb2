-- What stands in {braces} in the statements: the columns of whole rows, in the order of EventRow and LetterRow.
-- columns: event
session, seq, kind, at, turn, step, epoch, ignorable, attempt, position, place, ref_seq, call_id, message_id,
  slot, role, name, status, input_tokens, output_tokens, cached_tokens, cache_write_tokens, charged, cost_pico, currency,
  duration_us, due_at, text, text_blob, data, digest
-- columns: letter
id, uid, session, key, at, verb, data, digest

-- name: begin
BEGIN IMMEDIATE
-- name: commit
COMMIT
-- name: rollback
ROLLBACK
-- name: synchronous_full
PRAGMA synchronous = FULL
-- name: synchronous_normal
PRAGMA synchronous = NORMAL

-- name: journal_mode_wal
PRAGMA journal_mode = WAL
-- name: journal_mode_memory
PRAGMA journal_mode = MEMORY
-- name: journal_mode
PRAGMA journal_mode
-- name: application_id
PRAGMA application_id
-- name: user_version
PRAGMA user_version
-- name: connection_settings
PRAGMA trusted_schema = OFF;
PRAGMA cell_size_check = ON;
PRAGMA foreign_keys = ON;
PRAGMA recursive_triggers = ON;
PRAGMA temp_store = MEMORY;
PRAGMA wal_autocheckpoint = 1000;
PRAGMA journal_size_limit = 16777216
-- name: wal_autocheckpoint
PRAGMA wal_autocheckpoint
-- name: query_only
PRAGMA query_only = ON
-- name: query_more
PRAGMA query_only = OFF
-- name: checkpoint_passive
PRAGMA wal_checkpoint(PASSIVE)
-- name: checkpoint_truncate
PRAGMA wal_checkpoint(TRUNCATE)
-- A consistent copy, whoever writes meanwhile; it reads one snapshot.
-- name: copy_into
VACUUM INTO ?
-- name: tables
SELECT name FROM sqlite_schema WHERE type = 'table'
-- name: integrity_check
PRAGMA integrity_check
-- name: integrity_of_session_keys
PRAGMA integrity_check(session_keys)
-- What the index that sessions are read by knows of each, in its own order; the last id of the table.
-- name: sessions_in_index
SELECT e.session, max(e.seq), (SELECT max(id) FROM events), EXISTS(SELECT 1 FROM session_keys k WHERE k.session = e.session)
FROM events e GROUP BY e.session

-- name: is_open
SELECT is_open FROM open_mark
-- name: set_open
UPDATE open_mark SET is_open = ? WHERE is_open <> ?1

-- name: last_id
SELECT coalesce(max(id), 0) FROM events
-- name: session_key
SELECT session, uid FROM session_keys WHERE name = ?
-- name: session_of_uid
SELECT name FROM session_keys WHERE uid = ?
-- name: session_names
SELECT name FROM session_keys ORDER BY session
-- name: insert_session
INSERT INTO session_keys(name, uid) VALUES(?, ?)
-- name: last_seq
SELECT coalesce(max(seq), 0) FROM events WHERE session = ?
-- name: insert_session_as
INSERT INTO session_keys(session, name, uid) VALUES(?, ?, ?)
-- name: last_opened
SELECT max(seq) FROM events WHERE session = ? AND kind = 'session/opened'

-- name: insert_event
INSERT INTO events({event})
VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)
-- name: insert_delta
INSERT INTO delta_texts(session, seq, i, at_ms, text) VALUES(?,?,?,?,?)
-- name: insert_letter
INSERT INTO letters(uid, session, key, at, verb, data, digest) VALUES(?,?,?,?,?,?,?)
-- name: letter_of_key
SELECT {letter} FROM letters WHERE session = ? AND key = ?
-- The letters to a session behind a letter that its owner has not taken yet.
-- name: letters_waiting
SELECT {letter} FROM letters l
WHERE l.session = ?2 AND l.id > ?3
  AND NOT EXISTS(SELECT 1 FROM events e WHERE e.session = ?1 AND e.kind = 'letter/taken' AND e.message_id = l.uid)
ORDER BY l.id
-- name: last_letter
SELECT coalesce(max(id), 0) FROM letters
-- name: insert_blob
INSERT INTO blobs(digest, bytes) SELECT ?1, ?2 WHERE NOT EXISTS(SELECT 1 FROM blobs WHERE digest = ?1)
-- name: lacks_snapshots
SELECT count(*) < 2 FROM sqlite_schema WHERE name IN ('snapshots', 'snapshot_items')
-- name: insert_snapshot
INSERT OR REPLACE INTO snapshots(session, version, seq, digest, data, checksum) VALUES(?,?,?,?,?,?)
-- name: snapshot_of
SELECT session, version, seq, digest, data, checksum FROM snapshots WHERE session = ?
-- name: insert_snapshot_items
INSERT OR REPLACE INTO snapshot_items(session, seq, data) VALUES(?,?,?)
-- name: delete_snapshot_items
DELETE FROM snapshot_items WHERE session = ?
-- name: snapshot_items_of
SELECT data FROM snapshot_items WHERE session = ? ORDER BY seq
-- name: blob
SELECT bytes FROM blobs WHERE digest = ?

-- Whole rows in the order of `insert_event`, read in pages so that no snapshot is held for long.
-- name: events_page
SELECT {event}
FROM events WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?
-- name: event_at
SELECT {event}
FROM events WHERE session = ? AND seq = ?
-- Rows by their seqs, a JSON list, each with the digest of the row before it.
-- name: events_at
SELECT {event}, (SELECT digest FROM events p WHERE p.session = ?1 AND p.seq = e.seq - 1)
FROM json_each(?2) AS wanted CROSS JOIN events AS e ON e.session = ?1 AND e.seq = wanted.value
-- The message that so many stand before in the whole conversation; what stands for others is not counted.
-- name: message_said
SELECT {event}
FROM events WHERE session = ? AND place IS NOT NULL
  AND NOT (kind = 'user/message' AND ref_seq IS NOT NULL) AND NOT (kind = 'tool/result' AND attempt IS NOT NULL)
ORDER BY place, position LIMIT 1 OFFSET ?
-- Tables by id from an id on, past every index, which may be damaged. The id comes last.
-- name: events_by_id
SELECT {event}, id
FROM events NOT INDEXED WHERE id >= ? ORDER BY id LIMIT ?
-- name: places_by_id
SELECT session, seq, id FROM events NOT INDEXED WHERE id >= ? ORDER BY id LIMIT ?
-- name: sessions_by_id
SELECT name, uid, session FROM session_keys NOT INDEXED WHERE session >= ? ORDER BY session LIMIT ?
-- name: letters_by_id
SELECT uid, session, key, at, verb, data, digest, id FROM letters NOT INDEXED WHERE id >= ? ORDER BY id LIMIT ?
-- name: blobs_by_id
SELECT bytes, id FROM blobs NOT INDEXED WHERE id >= ? ORDER BY id LIMIT ?
-- What the indexes alone know, should the tables be damaged.
-- name: names_in_index
SELECT name, session FROM session_keys INDEXED BY sqlite_autoindex_session_keys_1
-- name: last_seqs
SELECT session, max(seq) FROM events INDEXED BY sqlite_autoindex_events_1 GROUP BY session
-- What was found in the pages of a damaged file, as it stands there: no rule holds of it. The first of an id counts.
-- name: regained_tables
CREATE TABLE IF NOT EXISTS session_keys(session INTEGER PRIMARY KEY, name, uid);
CREATE TABLE IF NOT EXISTS events(id INTEGER PRIMARY KEY, {event});
CREATE TABLE IF NOT EXISTS delta_texts(session, seq, i, at_ms, text, PRIMARY KEY(session, seq, i)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS letters(id INTEGER PRIMARY KEY, uid, session, key, at, verb, data, digest);
CREATE TABLE IF NOT EXISTS blobs(id INTEGER PRIMARY KEY, digest, bytes);
CREATE INDEX IF NOT EXISTS blobs_by_digest ON blobs(digest)
-- name: regain_session
INSERT OR IGNORE INTO session_keys(session, name, uid) VALUES(?,?,?)
-- name: regain_event
INSERT OR IGNORE INTO events(id, {event})
VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)
-- name: regain_delta
INSERT OR IGNORE INTO delta_texts(session, seq, i, at_ms, text) VALUES(?,?,?,?,?)
-- name: regain_letter
INSERT OR IGNORE INTO letters({letter}) VALUES(?,?,?,?,?,?,?,?)
-- name: regain_blob
INSERT OR IGNORE INTO blobs(id, digest, bytes) VALUES(?,?,?)
-- The splices that first and last named a message.
-- name: first_splice
SELECT {event}
FROM events WHERE session = ? AND message_id = ? AND slot IS NOT NULL AND kind = 'inbox/splice' ORDER BY seq LIMIT 1
-- name: last_splice
SELECT {event}
FROM events WHERE session = ? AND message_id = ? AND slot IS NOT NULL AND kind = 'inbox/splice' ORDER BY seq DESC LIMIT 1
-- name: deltas_of_event
SELECT at_ms, text FROM delta_texts WHERE session = ? AND seq = ? ORDER BY i
-- The messages the model is sent that stand behind one place and up to another, if one is given, as the view orders them.
-- What the furthest summary covers is not looked through, else each compaction costs more than the one before: of what
-- stands there, only the rows from it on can be seen.
-- name: messages_between
WITH summary AS (
  SELECT s.seq, s.place, s.ref_seq FROM session_keys k JOIN events s USING(session)
  WHERE k.name = ?1 AND s.kind = 'user/message' AND s.ref_seq IS NOT NULL
  ORDER BY s.ref_seq DESC, s.place DESC, s.seq DESC LIMIT 1
)
SELECT m.place, coalesce(m.position + 1, 0), m.seq, m.kind, m.text, m.data FROM summary s CROSS JOIN messages m
WHERE m.session = ?1 AND m.place > ?2 AND m.place < s.place AND m.place <= coalesce(?3, 9223372036854775807)
UNION ALL
SELECT m.place, coalesce(m.position + 1, 0), m.seq, m.kind, m.text, m.data FROM summary s CROSS JOIN messages m
WHERE m.session = ?1 AND s.ref_seq > ?2 AND m.seq >= s.seq
  AND +m.place > ?2 AND +m.place BETWEEN s.place AND min(s.ref_seq, coalesce(?3, 9223372036854775807))
UNION ALL
SELECT m.place, coalesce(m.position + 1, 0), m.seq, m.kind, m.text, m.data FROM messages m
WHERE m.session = ?1 AND m.place > max(?2, coalesce((SELECT max(ref_seq, place - 1) FROM summary), 0))
  AND m.place <= coalesce(?3, 9223372036854775807)
ORDER BY 1, 2
-- The sessions last written to, newest first; -1 for all. Only those that are wanted are looked at closely.
-- name: sessions_page
SELECT s.session, s.uid, s.title, s.created_at, s.last_at, s.last_seq, s.epoch, s.last_turn, s.last_reason, s.parent, s.depth
FROM (SELECT name, (SELECT id FROM events e WHERE e.session = k.session ORDER BY seq DESC LIMIT 1) AS last_id
      FROM session_keys k ORDER BY last_id DESC LIMIT ?) newest
CROSS JOIN sessions s ON s.session = newest.name
ORDER BY newest.last_id DESC
-- name: timeline
SELECT seq, at, turn, step, kind, what, text FROM timeline WHERE session = ? ORDER BY seq
-- name: usage_of
SELECT currency, sum(attempts), sum(answers), sum(input_tokens), sum(output_tokens), sum(cached_tokens), sum(cache_write_tokens),
CASE WHEN count(cost_pico) = count(*) AND sum(cost_pico >> 32) < 2000000000 THEN sum(cost_pico >> 32) * 4294967296 + sum(cost_pico & 4294967295) END
FROM usage WHERE session = ? GROUP BY currency ORDER BY currency IS NULL, currency
-- name: budget_of
SELECT card, most, used, left, warned IS NOT NULL FROM budgets WHERE session = ? ORDER BY card
-- name: questions_open
SELECT seq FROM approvals WHERE session = ? AND decision = 'open'
-- name: questions_settled
SELECT seq FROM approvals WHERE session = ? AND decided_seq <= ?
-- The cards that a session was given.
-- name: cards_of
SELECT DISTINCT g.name FROM session_keys k JOIN events g USING(session) WHERE k.name = ? AND g.kind = 'budget/granted'
-- name: requests_of
SELECT seq FROM requests WHERE session = ? AND turn = ? AND step = ? AND (?4 IS NULL OR attempt = ?4) ORDER BY attempt DESC LIMIT 1

-- Tasks, the last submitted first: in one state or in any (?1), at most ?2; -1 for all. The last column is the row that holds its goal.
-- name: tasks_page
SELECT t.session, t.class, t.state, t.cause, t.message, t.goal_met, t.model, t.agent, t.step_count, t.max_steps, t.recoveries,
       t.submitted_at, t.changed_at, t.due_at, k.session,
       coalesce((SELECT max(seq) FROM events a WHERE a.session = k.session AND a.kind = 'task/amended'), 2)
FROM events s CROSS JOIN session_keys k ON k.session = s.session CROSS JOIN tasks t ON t.session = k.name
WHERE s.kind = 'task/submitted' AND (?1 IS NULL OR t.state = ?1)
ORDER BY s.session DESC LIMIT ?2
-- name: task_named
SELECT t.session, t.class, t.state, t.cause, t.message, t.goal_met, t.model, t.agent, t.step_count, t.max_steps, t.recoveries,
       t.submitted_at, t.changed_at, t.due_at, k.session,
       coalesce((SELECT max(seq) FROM events a WHERE a.session = k.session AND a.kind = 'task/amended'), 2)
FROM session_keys k CROSS JOIN tasks t ON t.session = k.name
WHERE k.name = ?
-- The tasks that have not ended, in the order of submission.
-- name: tasks_open
SELECT s.session, k.name, coalesce(t.status, 'pending'), s.role, s.name, s.attempt, CASE WHEN t.id IS NULL THEN s.due_at ELSE t.due_at END,
       -- Whoever opened it by hand may have died before it went on.
       t.status = 'paused' AND EXISTS(SELECT 1 FROM events w WHERE w.session = s.session AND w.seq > t.seq
         AND (w.kind = 'approval/decided' OR w.kind = 'budget/granted' OR w.kind = 'inbox/splice' AND w.status = 'accepted'))
FROM events s CROSS JOIN session_keys k ON k.session = s.session
LEFT JOIN events t ON t.id = (SELECT id FROM events WHERE session = s.session AND kind = 'task/state' ORDER BY seq DESC LIMIT 1)
WHERE s.kind = 'task/submitted' AND coalesce(t.status, 'pending') NOT IN ('completed', 'failed', 'cancelled')
ORDER BY s.session
-- What has become of tasks in rows behind an id, and what may wake those that are paused: read by id, so the price is that of what is new.
-- name: tasks_since
SELECT e.session, k.name, e.kind, e.status, e.role, e.name, e.attempt, e.due_at
FROM events e NOT INDEXED CROSS JOIN session_keys k ON k.session = e.session
WHERE e.id > ? AND e.id <= ? AND (e.kind IN ('task/submitted', 'task/state', 'approval/decided', 'budget/granted')
  OR e.kind = 'inbox/splice' AND e.status = 'accepted') ORDER BY e.id
-- What uses quotas, in rows behind an id: requests by model, calls by tool, and the tokens that they were taken to be, or counted.
-- name: used_since
SELECT e.id, e.session, e.kind, e.at, CASE WHEN e.kind = 'request/sent' THEN h.name ELSE e.name END, e.input_tokens, e.charged
FROM events e NOT INDEXED LEFT JOIN events h ON e.kind = 'request/sent' AND h.session = e.session AND h.seq = e.ref_seq
WHERE e.id > ? AND (e.kind IN ('request/sent', 'tool/call', 'context/built', 'assistant/message', 'request/failed', 'compaction/end')
  OR e.kind = 'compaction/start' AND e.status = 'summarise') ORDER BY e.id
-- The id behind which all rows stand that were written since a time; none when there are none. Sessions come in with rows of old, so each is asked.
-- name: all_since
SELECT min(coalesce((SELECT e.id FROM events e WHERE e.session = k.session AND e.at < ?1 ORDER BY e.seq DESC LIMIT 1),
  (SELECT e.id - 1 FROM events e WHERE e.session = k.session AND e.seq = 1)))
FROM session_keys k WHERE (SELECT e.at FROM events e WHERE e.session = k.session ORDER BY e.seq DESC LIMIT 1) >= ?1
-- The class of the task that a session is for, or an ancestor of it.
-- name: class_of
WITH RECURSIVE family(session) AS (
  SELECT ?
  UNION SELECT p.session FROM family f CROSS JOIN events c ON c.session = f.session AND c.seq = 1 CROSS JOIN session_keys p ON p.name = c.status
)
SELECT t.role FROM family f CROSS JOIN events t ON t.session = f.session AND t.kind = 'task/submitted'
-- name: letters_since
SELECT DISTINCT session FROM letters WHERE id > ? AND id <= ?
-- name: has_letters
SELECT EXISTS(SELECT 1 FROM letters l WHERE l.session = ?2
  AND NOT EXISTS(SELECT 1 FROM events e WHERE e.session = ?1 AND e.kind = 'letter/taken' AND e.message_id = l.uid))

-- Timers by when they are due, of one session or all (?1); with ?2 also those that fire no more, last.
-- name: timers_page
SELECT session, timer, state, due_at, every_us, runs, missed, fired_at, set_at, set_by, text FROM timers
WHERE (?1 IS NULL OR session = ?1) AND (?2 OR state = 'open') ORDER BY due_at IS NULL, due_at, set_at
