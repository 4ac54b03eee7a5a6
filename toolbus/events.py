"""The events of a call, which ``Call.events()`` yields."""

from toolbus.bus.values.events import Answered, Asked, Event, Finished, Reset, Started, Text

__all__ = ["Answered", "Asked", "Event", "Finished", "Reset", "Started", "Text"]
