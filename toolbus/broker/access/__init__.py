"""Say which access to the server each role of processes needs."""
