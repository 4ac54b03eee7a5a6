"""Import ``chat2graph.yml``: its tools, actions, chains, operators and experts; what is wrong is told entry by entry."""

from toolbus.compat.chat2graph.importer.imported import Imported, import_config

__all__ = ["Imported", "import_config"]
