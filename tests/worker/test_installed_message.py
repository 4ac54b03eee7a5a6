"""A service whose packages are missing."""

from __future__ import annotations

import pytest

from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker import loading
from toolbus.bus.worker.loading import InstalledService, import_installed


def test_one_command_installs_what_a_service_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that a module below names is left out beside the service's own."""

    def refuse(name: str) -> None:
        raise ConfigurationError("can't import it: the agent needs httpx: pip install 'toolbus[agent]' (No module named 'httpx')")

    monkeypatch.setattr(loading, "import_module", refuse)
    service = InstalledService("coding-agent", "toolbus.platform.coding.service", "toolbus", ("platform",))
    with pytest.raises(ConfigurationError, match="needs httpx") as caught:
        import_installed(service)
    assert str(caught.value).count("pip install") == 1
    assert str(caught.value).endswith("pip install 'toolbus[platform]'")
