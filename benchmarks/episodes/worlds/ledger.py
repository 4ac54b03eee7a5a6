"""A bank-like ledger: each entry has a number, and each answer the balance after it."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from benchmarks.episodes.worlds.world import Move, World, refuse

Account = Literal["checking", "savings", "travel"]
Cents = Annotated[int, Meta(ge=1, le=1_000_000, description="an amount in cents")]
_ACCOUNTS = ("checking", "savings", "travel")


class Part(TypedDict):
    """A share of a payment."""

    account: Account
    cents: Cents


class Ledger(World):
    """Balances in cents, and a book of entries."""

    name = "ledger"

    def _prepare(self, chance: random.Random) -> None:
        self.balances = {account: chance.randint(10_000, 90_000) for account in _ACCOUNTS}
        self.frozen: list[str] = []
        self.limit = 50_000
        self.entries: list[dict[str, Any]] = []

    def _book(self, kind: str, account: str, cents: int) -> dict[str, Any]:
        if account in self.frozen:
            raise refuse(f"{account} is frozen")
        if self.balances[account] + cents < 0:
            raise refuse(f"{account} has {self.balances[account]} cents, {-cents} are needed")
        if cents < -self.limit:
            raise refuse(f"{-cents} cents are more than the limit of {self.limit}")
        self.balances[account] += cents
        self.entries.append({"number": len(self.entries) + 1, "kind": kind, "account": account, "cents": cents})
        return {"entry": len(self.entries), "account": account, "balance": self.balances[account]}

    def balance(self, account: Account) -> dict[str, Any]:
        """Tell the balance of an account, in cents."""
        return {"account": account, "balance": self.balances[account], "frozen": account in self.frozen}

    def deposit(self, account: Account, cents: Cents) -> dict[str, Any]:
        """Pay money in."""
        return self._book("deposit", account, cents)

    def withdraw(self, account: Account, cents: Cents) -> dict[str, Any]:
        """Take money out, at most the limit."""
        return self._book("withdrawal", account, -cents)

    def transfer(self, source: Account, target: Account, cents: Cents) -> list[dict[str, Any]]:
        """Move money from one account to another."""
        if target in self.frozen or source == target:
            raise refuse(f"nothing can be moved from {source} to {target}")
        return [self._book("transfer", source, -cents), self._book("transfer", target, cents)]

    def pay(self, parts: Annotated[list[Part], Meta(min_length=1, max_length=3)], payee: str) -> dict[str, Any]:
        """Pay somebody from one or more accounts."""
        done = [self._book(f"to {payee}", part["account"], -part["cents"]) for part in parts]
        return {"payee": payee, "entries": [each["entry"] for each in done]}

    def interest(self, percent: Annotated[int, Meta(ge=1, le=20)]) -> dict[str, Any]:
        """Add interest to the savings."""
        return self._book("interest", "savings", self.balances["savings"] * percent // 100 or 1)

    def freeze(self, account: Account) -> list[str]:
        """Freeze an account; return all that are frozen."""
        self.frozen = sorted({*self.frozen, account})
        return list(self.frozen)

    def release(self, account: Account) -> list[str]:
        """Release a frozen account; return those that still are."""
        if account not in self.frozen:
            raise refuse(f"{account} is not frozen")
        self.frozen.remove(account)
        return list(self.frozen)

    def set_limit(self, cents: Cents) -> str:
        """Set how much one entry may take out."""
        before, self.limit = self.limit, cents
        return f"the limit is {cents} instead of {before}"

    def statement(self, account: Account | None = None, last: Annotated[int, Meta(ge=1, le=20)] = 5) -> list[dict[str, Any]]:
        """List the last entries, of one account or of all."""
        return [each for each in self.entries if account in {None, each["account"]}][-last:]

    def undo(self) -> dict[str, Any]:
        """Book the last entry back."""
        if not self.entries:
            raise refuse("there is no entry")
        last = self.entries[-1]
        return self._book(f"undo {last['number']}", last["account"], -last["cents"])

    def _propose(self, chance: random.Random) -> Move:
        one, other = chance.sample(_ACCOUNTS, 2)
        cents = chance.randint(100, 9_000)
        options: list[Move] = [
            ("deposit", {"account": one, "cents": cents}),
            ("withdraw", {"account": one, "cents": cents}),
            ("transfer", {"source": one, "target": other, "cents": cents}),
            ("pay", {"parts": [{"account": one, "cents": cents}, {"account": other, "cents": cents // 2}], "payee": "the baker"}),
            ("interest", {"percent": chance.randint(1, 5)}),
            ("balance", {"account": one}),
            ("statement", {"account": one, "last": 3}),
            ("statement", {}),
            ("set_limit", {"cents": chance.randint(5_000, 60_000)}),
        ]
        if self.entries:
            options.append(("undo", {}))
        if self.frozen:
            options += [("release", {"account": chance.choice(self.frozen)})] * 3
        elif chance.random() < 0.3:
            options.append(("freeze", {"account": one}))
        return chance.choice(options)
