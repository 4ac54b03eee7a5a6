"""List the worlds by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.episodes.worlds.calculator import Calculator
from benchmarks.episodes.worlds.cart import Cart
from benchmarks.episodes.worlds.files import Files
from benchmarks.episodes.worlds.ledger import Ledger
from benchmarks.episodes.worlds.messages import Messages
from benchmarks.episodes.worlds.tickets import Tickets
from benchmarks.episodes.worlds.travel import Travel
from benchmarks.episodes.worlds.vehicle import Vehicle
from benchmarks.episodes.worlds.world import World

WORLDS: Mapping[str, type[World]] = {world.name: world for world in (Calculator, Cart, Files, Ledger, Messages, Tickets, Travel, Vehicle)}
