-- What each session came to at row `seq`, whose digest is `digest`: a cache and never a fact, so not append-only. It is
-- replaced as the session grows and may be deleted at any time, and only what opens a session to run looks at it.
-- `version` names the code that wrote it, `checksum` covers all of it. Older files get the table when they are opened.
CREATE TABLE IF NOT EXISTS snapshots(
  session  INTEGER PRIMARY KEY,
  version  TEXT    NOT NULL,
  seq      INTEGER NOT NULL,
  digest   BLOB    NOT NULL,
  data     TEXT    NOT NULL,
  checksum BLOB    NOT NULL
) STRICT;

-- The part of it that only grows, piece by piece: what came into the sets of the state from one snapshot to the next.
CREATE TABLE IF NOT EXISTS snapshot_items(
  session INTEGER NOT NULL,
  seq     INTEGER NOT NULL,
  data    TEXT    NOT NULL,
  PRIMARY KEY(session, seq)
) STRICT, WITHOUT ROWID;
