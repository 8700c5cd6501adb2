-- For the databases of transactional tools, which are the host's: nothing is changed there but the one table.
-- Plain SQL, that old SQLites know: other programs open these databases, too.

-- What FULL does, and the folder is synced when a rollback journal is gone: until then, it might come back.
-- name: synchronous
PRAGMA synchronous = EXTRA
-- name: foreign_keys
PRAGMA foreign_keys = ON
-- name: whose
PRAGMA application_id
-- name: begin
BEGIN IMMEDIATE
-- name: commit
COMMIT
-- name: rollback
ROLLBACK

-- What is done, by invocation id, since when (unix µs), and how often that was asked for after a death. Without
-- a result the call was given up: nothing happened, and nothing will.
-- name: create_done
CREATE TABLE IF NOT EXISTS flightlog_done (
  invocation_id TEXT NOT NULL PRIMARY KEY, result TEXT, at INTEGER NOT NULL, asked INTEGER NOT NULL DEFAULT 0
)
-- name: insert_done
INSERT INTO flightlog_done (invocation_id, result, at) VALUES (?, ?, ?)
-- name: find_done
SELECT result FROM flightlog_done WHERE invocation_id = ?
-- Whoever committed the row may have died before it was synced, and only a commit that writes syncs. SQLite
-- does not write a row that stays the same.
-- name: ask_done
UPDATE flightlog_done SET asked = asked + 1 WHERE invocation_id = ?
