"""The only home of SQLite: the file, its locks, the codec, and every SQL statement (in `sql/`)."""
