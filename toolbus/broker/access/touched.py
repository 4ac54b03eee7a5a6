"""The keys that each script touches."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Touched(msgspec.Struct, frozen=True):
    """The keys that a script or command touches, as names of families (``q`` is ``q:…``), separated by spaces.

    Attributes:
        given: keys that a script is given: the server wants reading and writing for these.
        reads, writes: keys that are read, or written.
        tells: channels that it publishes to.
    """

    given: str = ""
    reads: str = ""
    writes: str = ""
    tells: str = ""


_REGISTRY = "reg:services reg:names reg:meta reg:items live log"
WRITES_DOCUMENTS = frozenset({"registry/item", "registry/replace"})
"""Scripts that are given tables of documents, too, by what they write."""
_SERVICES = "reg:s q fence cancelled"

SCRIPTS: Mapping[str, Touched] = MappingProxyType(
    {
        "publish/publish": Touched("q pub order"),
        "publish/cancel": Touched("q cancelled", tells="wake"),
        "publish/share": Touched("key q call order", tells="wake"),
        "publish/leave": Touched("key q cancelled", reads="rsp", tells="wake"),
        "publish/listen": Touched("rsp"),
        "finish/send": Touched("live", writes="rsp call"),
        "finish/finish": Touched("q fence", writes="rsp call"),
        "finish/finish_each": Touched("q fence key started", writes="rsp call"),
        "lease/beat": Touched("q fence live pulse reg:paused"),
        "lease/renew": Touched("q fence"),
        "recover/reap": Touched("q fence live pulse", reads="pause"),
        "recover/rescue": Touched("q", tells="wake"),
        "recover/hand_back": Touched("q fence pause", tells="wake"),
        "recover/hand_over": Touched("q fence live reg:s", tells="wake"),
        "recover/outlive": Touched(reads="q fence live reg:s"),
        "recover/retire": Touched("q fence cancelled reg:s live"),
        "recover/mend": Touched(),
        "take/start": Touched("q fence started"),
        "take/count": Touched("q fence"),
        "take/take": Touched("q"),
        "dead_letters/bury": Touched("q fence dlq key started", writes="rsp call"),
        "dead_letters/redrive": Touched("dlq q"),
        "dead_letters/purge": Touched("q key started", writes="rsp call"),
        "sessions/own": Touched("q fence live pulse reg:s sess", tells="wake"),
        "sessions/disown": Touched("sess snap"),
        "recover/pass_on": Touched("q", tells="wake"),
        "sessions/line": Touched("q order"),
        "sessions/save": Touched("q fence sess snap"),
        "sessions/forget": Touched("q fence sess snap"),
        "sessions/load": Touched("snap"),
        "sessions/elsewhere": Touched("q order fence live"),
        "registry/register": Touched(f"{_REGISTRY} {_SERVICES}"),
        "registry/unregister": Touched(f"{_REGISTRY} {_SERVICES}"),
        "registry/sweep": Touched(f"{_REGISTRY} {_SERVICES}"),
        "registry/item": Touched(f"{_REGISTRY} reg:s"),
        "registry/replace": Touched(_REGISTRY),
        "registry/transfer": Touched(f"{_REGISTRY} reg:s"),
        "registry/overview": Touched("q dlq reg:paused reg:s live fence"),
        "registry/overviews": Touched("q dlq reg:paused reg:s live fence"),
        "results/keep": Touched("results"),
        "limits/spend": Touched("rate"),
        "limits/quota": Touched("quota"),
        "limits/usage": Touched("usage"),
        "confirmations/ask": Touched("confirm confirms", tells="confirmed"),
        "confirmations/answer": Touched("confirm confirms", writes="rsp", tells="confirmed wake"),
        "confirmations/withdraw": Touched("confirm confirms", tells="confirmed"),
        "confirmations/extend": Touched("pause started call key"),
        "confirmations/pause": Touched("reg:paused"),
        "conversations/hold": Touched("conv convs"),
        "conversations/append": Touched("conv convs"),
        "conversations/renew": Touched("conv convs"),
        "conversations/remove": Touched("conv convs"),
        "recent/note": Touched("recent"),
        "statistics/tell": Touched("stats"),
        "routes/renew": Touched("hosts routes single"),
        "routes/release": Touched("hosts routes single"),
        "routes/output": Touched("output"),
        "creations/submit": Touched("creation creations:queued creations:running", tells="creations"),
        "creations/claim": Touched("creation creations:queued creations:running creations:ended", tells="creations"),
        "creations/write": Touched("creation creations:running", tells="creations"),
        "creations/end": Touched("creation creations:queued creations:running creations:ended", tells="creations"),
        "creations/stop": Touched("creation creations:queued creations:running creations:ended", tells="creations"),
    }
)
"""The keys of each script. ``recover/mend`` is given keys of the role that runs it."""
