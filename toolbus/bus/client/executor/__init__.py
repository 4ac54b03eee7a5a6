"""The execution of the tool calls that a model asks for, turn by turn."""
