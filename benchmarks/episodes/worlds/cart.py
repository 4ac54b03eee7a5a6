"""A shopping cart with stock, coupons and orders."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from benchmarks.episodes.worlds.world import Move, World, refuse

Article = Literal["apple", "bread", "cheese", "dates", "eggs", "flour"]
Count = Annotated[int, Meta(ge=1, le=20)]
_PRICES = {"apple": 40, "bread": 320, "cheese": 780, "dates": 510, "eggs": 390, "flour": 150}
_COUPONS = {"TENOFF": 10, "HALF": 50, "FIVE": 5}


class Line(TypedDict):
    """An article and how many."""

    article: Article
    count: Count


class Cart(World):
    """A cart that turns into orders, which reduce the stock."""

    name = "cart"

    def _prepare(self, chance: random.Random) -> None:
        self.stock = {article: chance.randint(5, 40) for article in _PRICES}
        self.cart: dict[str, int] = {}
        self.coupon = ""
        self.orders: list[dict[str, Any]] = []
        self.address = ""

    def _sum(self) -> int:
        return sum(_PRICES[article] * count for article, count in self.cart.items()) * (100 - _COUPONS.get(self.coupon, 0)) // 100

    def browse(self, most_price: Annotated[int, Meta(ge=1)] = 1_000) -> list[dict[str, Any]]:
        """List articles up to a price, with what is in stock."""
        return [{"article": name, "price": price, "stock": self.stock[name]} for name, price in _PRICES.items() if price <= most_price]

    def add(self, article: Article, count: Count = 1) -> dict[str, Any]:
        """Put an article into the cart."""
        wanted = self.cart.get(article, 0) + count
        if wanted > self.stock[article]:
            raise refuse(f"{self.stock[article]} of {article} are in stock, not {wanted}")
        self.cart[article] = wanted
        return {"article": article, "count": wanted, "sum": self._sum()}

    def add_many(self, lines: Annotated[list[Line], Meta(min_length=1, max_length=4)]) -> dict[str, Any]:
        """Put several articles into the cart."""
        for line in lines:
            self.add(line["article"], line["count"])
        return {"cart": dict(sorted(self.cart.items())), "sum": self._sum()}

    def remove(self, article: Article, count: Count | None = None) -> dict[str, Any]:
        """Take an article out again, all or some."""
        if article not in self.cart:
            raise refuse(f"there is no {article} in the cart")
        left = 0 if count is None else max(0, self.cart[article] - count)
        if left:
            self.cart[article] = left
        else:
            del self.cart[article]
        return {"article": article, "count": left, "sum": self._sum()}

    def apply_coupon(self, code: Annotated[str, Meta(min_length=3, max_length=10)]) -> dict[str, Any]:
        """Use a coupon instead of the one before."""
        if code not in _COUPONS:
            raise refuse(f"there is no coupon {code}")
        before, self.coupon = self.coupon, code
        return {"before": before, "now": code, "sum": self._sum()}

    def set_address(self, street: str, city: str, country: Literal["DE", "FR", "PT"] = "DE") -> str:
        """Set where orders go."""
        self.address = f"{street}, {city}, {country}"
        return f"orders go to {self.address}"

    def checkout(self, express: bool = False) -> dict[str, Any]:
        """Order what is in the cart."""
        if not self.cart or not self.address:
            raise refuse("the cart is empty" if self.address else "set an address first")
        order = {"number": len(self.orders) + 1, "sum": self._sum() + (500 if express else 0), "status": "ordered", "lines": self.cart}
        for article, count in self.cart.items():
            self.stock[article] -= count
        self.orders.append(order)
        self.cart, self.coupon = {}, ""
        return {"order": order["number"], "sum": order["sum"]}

    def cancel_order(self, number: Count) -> dict[str, Any]:
        """Cancel an order and put its articles back into stock."""
        order = next((each for each in self.orders if each["number"] == number), None)
        if order is None or order["status"] != "ordered":
            raise refuse(f"there is no order {number} to cancel")
        order["status"] = "cancelled"
        for article, count in order["lines"].items():
            self.stock[article] += count
        return {"cancelled": number, "back": order["sum"]}

    def show_orders(self, status: Literal["ordered", "cancelled"] | None = None) -> list[int]:
        """List the numbers of orders."""
        return [each["number"] for each in self.orders if status in {None, each["status"]}]

    def total(self) -> dict[str, Any]:
        """Tell what is in the cart, and its sum."""
        return {"cart": dict(sorted(self.cart.items())), "coupon": self.coupon, "sum": self._sum()}

    def _propose(self, chance: random.Random) -> Move:
        article, other = chance.sample(sorted(_PRICES), 2)
        options: list[Move] = [
            ("add", {"article": article, "count": chance.randint(1, 4)}),
            ("add", {"article": article}),
            ("add_many", {"lines": [{"article": article, "count": 1}, {"article": other, "count": 2}]}),
            ("apply_coupon", {"code": chance.choice([*_COUPONS, "NOSUCH"])}),
            ("browse", {"most_price": chance.choice([100, 400, 900])}),
            ("total", {}),
            ("show_orders", {"status": chance.choice(["ordered", "cancelled"])}),
        ]
        if not self.address or chance.random() < 0.1:
            options.append(("set_address", {"street": f"Road {self.served}", "city": "Porto", "country": "PT"}))
        if self.cart:
            options += [("remove", {"article": chance.choice(sorted(self.cart))}), ("checkout", {"express": chance.random() < 0.5})]
        open_orders = [each["number"] for each in self.orders if each["status"] == "ordered"]
        if open_orders:
            options.append(("cancel_order", {"number": chance.choice(open_orders)}))
        return chance.choice(options)
