"""Other projects' names as thin facades; nothing else imports from here."""
