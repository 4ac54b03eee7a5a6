"""The recent calls of a namespace: a bounded stream that workers write and operators read."""
