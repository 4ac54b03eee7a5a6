"""The endpoint and the model that the environment names."""

from __future__ import annotations

from collections.abc import Mapping

from toolbus.agent.endpoint import OPENAI, ChatEndpoint
from toolbus.results import ConfigurationError

KEY, MODEL, BASE_URL = "OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_BASE_URL"


def missing(environ: Mapping[str, str], *, model: str = "") -> str:
    """Return the message for what is not set, and has to be; empty when nothing is missing."""
    if not environ.get(KEY, "").strip():
        return f"set {KEY} to your endpoint's key (any word for one that needs none), and {BASE_URL} unless it is OpenAI"
    if not (model or environ.get(MODEL, "")).strip():
        return f"which model? pass --model or set {MODEL}"
    return ""


def endpoint_of(environ: Mapping[str, str], *, base_url: str = "", model: str = "") -> tuple[ChatEndpoint, str]:
    """Return the endpoint and the model's name; what is given stands before the environment.

    Raises:
        ConfigurationError: one is missing or wrong; the message says what to set.
    """
    if wrong := missing(environ, model=model):
        raise ConfigurationError(wrong)
    endpoint = ChatEndpoint(base_url or environ.get(BASE_URL) or OPENAI, environ[KEY].strip())
    return endpoint, (model or environ[MODEL]).strip()
