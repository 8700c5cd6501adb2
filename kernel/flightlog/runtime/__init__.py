"""The only part that awaits: journal, driver, model calls, tools, recovery, plugins."""
