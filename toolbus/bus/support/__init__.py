"""Small helps that know nothing of the bus: text, tasks, deadlines, secrets, HTTP to strangers."""
