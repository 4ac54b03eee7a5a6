"""``Images``: have the image of a source on this machine, by building it or by fetching it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

from toolbus.backends.containers.cli import CliFailed, ContainerCli
from toolbus.backends.runner import CannotStart, Line
from toolbus.platform.digests import digest_of_folder
from toolbus.results import ConfigurationError

BUILD_LABEL = "toolbus.build"
"""Label of an image with the digest of the folder that it was built from."""

_WITHIN = 1_800.0
_MISSING = ("no such image", "not found", "unable to find", "image not known")


class Images:
    """Makes each image once, however many containers are waiting for it."""

    def __init__(self, cli: ContainerCli) -> None:
        self._cli = cli
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def have(self, image: str, folder: str, line: Line) -> None:
        """Have an image.

        Args:
            image: its name.
            folder: that it is built from; empty for one that is fetched when it is not here.
            line: hears what is built or fetched.

        Raises:
            CannotStart: it can't be built or fetched.
        """
        async with self._making[image]:
            if folder:
                await self._build(image, folder, line)
            elif await self._label(image) is None:
                await self._fetch(image, line)

    async def _build(self, image: str, folder: str, line: Line) -> None:
        file, digest = await asyncio.to_thread(_inspected, folder)
        if await self._label(image) == digest:
            return
        line(f"building the image {image} from {folder}")
        words = ("build", "--tag", image, "--label", f"{BUILD_LABEL}={digest}", "--file", str(file), str(file.parent))
        try:
            await self._cli.follow(*words, within=_WITHIN, line=line)
        except CliFailed as error:
            raise CannotStart(f"its image {image} can't be built: {error}") from None

    async def _fetch(self, image: str, line: Line) -> None:
        line(f"fetching the image {image}")
        try:
            await self._cli.follow("pull", image, within=_WITHIN, line=line)
        except CliFailed as error:
            message = f"its image {image} is not on this host, and can't be fetched: build or import it, or change its name ({error})"
            raise CannotStart(message) from None

    async def _label(self, image: str) -> str | None:
        """Return the digest that an image was built from, empty for another image, and None when there is no such image."""
        try:
            return await self._cli.run("image", "inspect", "--format", f'{{{{index .Config.Labels "{BUILD_LABEL}"}}}}', image)
        except CliFailed as error:
            if any(each in error.said.lower() for each in _MISSING):
                return None
            raise


def _inspected(folder: str) -> tuple[Path, str]:
    """Return the file by which a folder's image is built, and the folder's digest.

    Raises:
        CannotStart: there is no such file, or the folder can't be read.
    """
    here = Path(folder).expanduser().absolute()
    for name in ("Dockerfile", "Containerfile"):
        if (here / name).is_file():
            try:
                return here / name, digest_of_folder(here)
            except ConfigurationError as error:
                raise CannotStart(f"its image can't be built: {error}", permanent=True) from None
    raise CannotStart(f"its folder {folder!r} has no Dockerfile on this host: write one, or change host_dir", permanent=True)
