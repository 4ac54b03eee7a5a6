"""Tell which chats there are, and which of them a messenger shows."""
