"""How a service is written: ``ToolService``, ``@tool``, provided services, retries."""
