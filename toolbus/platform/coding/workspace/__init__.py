"""The folder of a task, and the commands that run in it: nothing that they do reaches beyond it."""
