"""The parts of which a service is written: ``ToolService``, ``@tool``, provided services, retries."""
