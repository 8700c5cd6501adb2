-- The tables of a flightlog file. Every fact is a row that is never changed again: triggers refuse
-- UPDATE, DELETE and any INSERT that would replace or skip a row, from whatever program it comes.

PRAGMA application_id = 0x464c4f47;  -- 'FLOG'
PRAGMA user_version = 1;

-- One row a session: a small key for the big table. `uid` is the one in session/created.
CREATE TABLE session_keys(
  session INTEGER PRIMARY KEY CHECK(session > 0),
  name    TEXT NOT NULL UNIQUE,
  uid     TEXT NOT NULL UNIQUE
) STRICT;

-- The log. `data` is the event in canonical JSON, opaque to SQL, except that the words of a message
-- stand once, in `text`. The columns from `attempt` to `due_at` are derived from the event for
-- the views and compared with it on load. `digest` chains each row to the one before it.
CREATE TABLE events(
  id            INTEGER PRIMARY KEY CHECK(id > 0),
  session       INTEGER NOT NULL REFERENCES session_keys(session),
  seq           INTEGER NOT NULL,
  kind          TEXT    NOT NULL,
  at            INTEGER NOT NULL,  -- Unix microseconds
  turn          INTEGER,
  step          INTEGER,
  epoch         INTEGER NOT NULL,
  ignorable     INTEGER NOT NULL,
  attempt       INTEGER,
  position      INTEGER,
  place         INTEGER,           -- where the model sees it: orders the messages view
  ref_seq       INTEGER,
  call_id       TEXT,
  message_id    TEXT,
  slot          TEXT,
  role          TEXT,
  name          TEXT,
  status        TEXT,
  input_tokens  INTEGER,
  output_tokens INTEGER,
  cached_tokens INTEGER,
  cache_write_tokens INTEGER,
  charged       INTEGER,           -- tokens that count for a budget
  cost_pico     INTEGER,           -- 10^-12 of the currency, where price and tokens are known
  currency      TEXT,
  duration_us   INTEGER,
  due_at        INTEGER,           -- Unix microseconds: when something is to go on by itself
  text          TEXT,
  text_blob     BLOB,              -- digest of the whole text when `text` is only its beginning
  data          TEXT    NOT NULL,
  digest        BLOB    NOT NULL,
  UNIQUE(session, seq)
) STRICT;

-- Few indexes, each touched at one place only: every page an append dirties is written to the -wal.
-- (Conditions are spelled with OR: SQLite does not see that kind = 'x' implies kind IN ('x', ...).)
CREATE INDEX events_visible ON events(session, place, position, seq) WHERE place IS NOT NULL;
CREATE INDEX events_bracket ON events(session, turn, step, kind, attempt)
  WHERE kind = 'turn/start' OR kind = 'turn/end' OR kind = 'step/end'
     OR kind = 'request/failed' OR kind = 'assistant/message' OR kind = 'tool/result';
CREATE INDEX events_decided ON events(session, ref_seq) WHERE kind = 'approval/decided';
CREATE INDEX events_inbox   ON events(session, message_id, seq) WHERE slot IS NOT NULL;
CREATE INDEX events_summary ON events(session, ref_seq, place, seq) WHERE kind = 'user/message' AND ref_seq IS NOT NULL;
CREATE INDEX events_task    ON events(kind, session, seq)
  WHERE kind = 'task/submitted' OR kind = 'task/amended' OR kind = 'task/state'
     OR kind = 'budget/granted' OR kind = 'budget/alert' OR kind = 'budget/degraded' OR kind = 'goal/checked' OR kind = 'checkpoint/written' OR kind = 'checkpoint/skipped' OR kind = 'session/opened';
CREATE INDEX events_timer   ON events(kind, session, name, seq)
  WHERE kind = 'timer/set' OR kind = 'timer/fired' OR kind = 'timer/cancelled';
CREATE UNIQUE INDEX events_letter ON events(session, message_id) WHERE kind = 'letter/taken';  -- no letter is taken twice

CREATE TRIGGER events_insert BEFORE INSERT ON events BEGIN
  SELECT CASE
    WHEN EXISTS(SELECT 1 FROM events WHERE id = NEW.id)
      THEN RAISE(ABORT, 'append-only: the row exists')
    WHEN NEW.id > 0 AND NEW.id IS NOT (SELECT coalesce(max(id), 0) FROM events) + 1
      THEN RAISE(ABORT, 'append-only: ids count from 1 without a gap')
    WHEN NEW.epoch < (SELECT epoch FROM events WHERE session = NEW.session ORDER BY seq DESC LIMIT 1)
      THEN RAISE(ABORT, 'fenced: a newer owner has taken the session over')
    WHEN NEW.seq IS NOT coalesce((SELECT seq FROM events WHERE session = NEW.session ORDER BY seq DESC LIMIT 1), 0) + 1
      THEN RAISE(ABORT, 'seq-dense: seq is not the last one plus one')
  END;
END;
CREATE TRIGGER events_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'append-only: events are never changed'); END;
CREATE TRIGGER events_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'append-only: events are never deleted'); END;

-- The texts of assistant/delta, one row a delta as it arrived. Covered by the hash in their event.
CREATE TABLE delta_texts(
  session INTEGER NOT NULL,
  seq     INTEGER NOT NULL,
  i       INTEGER NOT NULL,
  at_ms   INTEGER NOT NULL,  -- milliseconds after the event's time
  text    TEXT    NOT NULL,
  PRIMARY KEY(session, seq, i)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER delta_texts_insert BEFORE INSERT ON delta_texts
  WHEN EXISTS(SELECT 1 FROM delta_texts WHERE session = NEW.session AND seq = NEW.seq AND i = NEW.i)
  BEGIN SELECT RAISE(ABORT, 'append-only: the row exists'); END;
CREATE TRIGGER delta_texts_update BEFORE UPDATE ON delta_texts BEGIN SELECT RAISE(ABORT, 'append-only: deltas are never changed'); END;
CREATE TRIGGER delta_texts_delete BEFORE DELETE ON delta_texts BEGIN SELECT RAISE(ABORT, 'append-only: deltas are never deleted'); END;

-- Letters to sessions, from whoever is not their owner. `session` is a name: it need not exist yet. The
-- owner turns them into events, in order of id, each once: a letter was taken when there is a
-- letter/taken with its uid. `data` says what is wanted, in canonical JSON; `digest` covers the letter.
CREATE TABLE letters(
  id      INTEGER PRIMARY KEY CHECK(id > 0),
  uid     TEXT    NOT NULL UNIQUE,
  session TEXT    NOT NULL,
  key     TEXT,                    -- the sender's idempotency key, if any
  at      INTEGER NOT NULL,        -- Unix microseconds
  verb    TEXT    NOT NULL,
  data    TEXT    NOT NULL,
  digest  BLOB    NOT NULL,
  UNIQUE(session, key)
) STRICT;
CREATE INDEX letters_of ON letters(session);

CREATE TRIGGER letters_insert BEFORE INSERT ON letters
  WHEN EXISTS(SELECT 1 FROM letters WHERE id = NEW.id OR uid = NEW.uid OR (session = NEW.session AND key = NEW.key))
    OR (NEW.id > 0 AND NEW.id IS NOT (SELECT coalesce(max(id), 0) FROM letters) + 1)
  BEGIN SELECT RAISE(ABORT, 'append-only: the row exists, or its id skips some'); END;
CREATE TRIGGER letters_update BEFORE UPDATE ON letters BEGIN SELECT RAISE(ABORT, 'append-only: letters are never changed'); END;
CREATE TRIGGER letters_delete BEFORE DELETE ON letters BEGIN SELECT RAISE(ABORT, 'append-only: letters are never deleted'); END;

-- Large payloads by content: stored once, referred to by sha256.
CREATE TABLE blobs(
  id     INTEGER PRIMARY KEY CHECK(id > 0),
  digest BLOB NOT NULL UNIQUE,
  bytes  BLOB NOT NULL
) STRICT;

CREATE TRIGGER blobs_insert BEFORE INSERT ON blobs
  WHEN EXISTS(SELECT 1 FROM blobs WHERE id = NEW.id OR digest = NEW.digest)
  BEGIN SELECT RAISE(ABORT, 'append-only: the row exists'); END;
CREATE TRIGGER blobs_update BEFORE UPDATE ON blobs BEGIN SELECT RAISE(ABORT, 'append-only: blobs are never changed'); END;
CREATE TRIGGER blobs_delete BEFORE DELETE ON blobs BEGIN SELECT RAISE(ABORT, 'append-only: blobs are never deleted'); END;

CREATE TRIGGER session_keys_insert BEFORE INSERT ON session_keys
  WHEN EXISTS(SELECT 1 FROM session_keys WHERE session = NEW.session OR name = NEW.name OR uid = NEW.uid)
  BEGIN SELECT RAISE(ABORT, 'append-only: the row exists'); END;
CREATE TRIGGER session_keys_update BEFORE UPDATE ON session_keys BEGIN SELECT RAISE(ABORT, 'append-only: sessions are never renamed'); END;
CREATE TRIGGER session_keys_delete BEFORE DELETE ON session_keys BEGIN SELECT RAISE(ABORT, 'append-only: sessions are never deleted'); END;

-- Whether a kernel has the file open: the one cell that changes. It lets an open find that the -wal
-- of a killed process is missing, which SQLite would take for a shorter log.
CREATE TABLE open_mark(
  one     INTEGER PRIMARY KEY CHECK(one = 1),
  is_open INTEGER NOT NULL CHECK(is_open IN (0, 1))
) STRICT;
INSERT INTO open_mark VALUES(1, 0);
CREATE TRIGGER open_mark_delete BEFORE DELETE ON open_mark BEGIN SELECT RAISE(ABORT, 'append-only: the mark is never deleted'); END;
