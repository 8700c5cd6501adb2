-- name: schema
-- Terms are words and pairs of characters, made by terms.py, so all that is left to do is to split them at spaces.
CREATE TABLE memories (
    id INTEGER PRIMARY KEY,
    subject TEXT NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    session TEXT NOT NULL,
    at INTEGER NOT NULL, -- Unix microseconds
    concludes INTEGER NOT NULL -- 1 for what came of the session's task, at most one for each session
) STRICT;
CREATE UNIQUE INDEX said ON memories (subject, kind, text) WHERE concludes = 0;
CREATE UNIQUE INDEX concluded ON memories (session) WHERE concludes = 1;
CREATE TABLE followed (session TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT;
CREATE VIRTUAL TABLE terms USING fts5 (words, content = '', tokenize = 'ascii');
PRAGMA application_id = 1179405645; -- FLMM
PRAGMA user_version = 2;

-- name: safely
-- The file is disposable, so a commit need not outlive the power; it must not be half there.
PRAGMA synchronous = NORMAL;

-- name: version
PRAGMA user_version;

-- name: check
PRAGMA quick_check(1);

-- name: begin
BEGIN IMMEDIATE;

-- name: commit
COMMIT;

-- name: add
INSERT OR IGNORE INTO memories (subject, kind, text, session, at, concludes) VALUES (?, ?, ?, ?, ?, ?) RETURNING id;

-- name: add_terms
INSERT INTO terms (rowid, words) VALUES (?, ?);

-- name: drop
DELETE FROM memories WHERE session = ? AND concludes = 1 RETURNING id, text;

-- name: drop_terms
INSERT INTO terms (terms, rowid, words) VALUES ('delete', ?, ?);

-- name: follow
INSERT OR REPLACE INTO followed (session, seq) VALUES (?, ?);

-- name: followed
SELECT session, seq FROM followed;

-- name: search
-- Two tasks may have come to the same in the same words; the newer of them speaks for both.
WITH found AS MATERIALIZED (
    SELECT m.id, m.kind, m.text, m.session, m.at, m.concludes, bm25(terms) AS rank
    FROM terms JOIN memories AS m ON m.id = terms.rowid
    WHERE terms MATCH ?1 AND m.subject = ?2 AND m.session <> ?3
)
SELECT kind, text, session, max(at), concludes
FROM found
GROUP BY kind, text
ORDER BY rank, id DESC
LIMIT ?4;
