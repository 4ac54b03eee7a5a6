"""The ways in which an agent makes its turns, each with a scripted model and no network."""
