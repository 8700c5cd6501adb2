-- name: schema
-- Terms are words and pairs of characters, made by terms.py.
CREATE TABLE memories (
    id INTEGER PRIMARY KEY,
    subject TEXT NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    session TEXT NOT NULL,
    at INTEGER NOT NULL, -- Unix microseconds
    UNIQUE (subject, kind, text)
) STRICT;
CREATE TABLE followed (session TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT;
CREATE VIRTUAL TABLE terms USING fts5 (words, content = '', tokenize = 'unicode61 remove_diacritics 2');
PRAGMA application_id = 1179405645; -- FLMM
PRAGMA user_version = 1;

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
INSERT OR IGNORE INTO memories (subject, kind, text, session, at) VALUES (?, ?, ?, ?, ?) RETURNING id;

-- name: add_terms
INSERT INTO terms (rowid, words) VALUES (?, ?);

-- name: follow
INSERT OR REPLACE INTO followed (session, seq) VALUES (?, ?);

-- name: followed
SELECT seq FROM followed WHERE session = ?;

-- name: search
SELECT m.kind, m.text, m.session, m.at
FROM terms JOIN memories AS m ON m.id = terms.rowid
WHERE terms MATCH ?1 AND m.subject = ?2 AND m.session <> ?3
ORDER BY bm25(terms), m.id DESC
LIMIT ?4;
