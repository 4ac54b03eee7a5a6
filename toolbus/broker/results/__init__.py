"""Keep the results of a session's earlier calls, to which later calls refer."""
