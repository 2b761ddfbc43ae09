"""From a plan to a sealed bundle: workers (one fresh process per process pair), the supervisor, the ledger."""
