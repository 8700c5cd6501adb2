"""What the adapters of real providers share: their model names, JSON, event streams, failures and connections."""
