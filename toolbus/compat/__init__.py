"""Facades with the names of other projects; nothing else imports from here."""
