"""Recording a run: where clock and ledger meet."""
