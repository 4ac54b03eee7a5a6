"""``fetch_page`` as its tests call it."""

import time

import pytest
from toolbus_workers.fetch_page import FetchPage

from toolbus import ToolError

HTML = """<!doctype html><html><head><title>The  hive</title><style>p {}</style><base href="/a/"></head>
<body><nav><a href="b.html#top">Home</a></nav><h1>Bees</h1><p>Bees make <b>honey</b>.<br>Much of it.</p><ul><li>one<li>two</ul>
<table><tr><td>1<td>2</table><script>alert("x")</script><p hidden>unseen</p><a href="javascript:alert(1)">no</a>
<a href="http://other.test/x">  Other
page </a><a href="b.html"><img src=x alt="A bee"></a><a href="mailto:a@b.test">mail</a><a href="http://[bad">bad</a></body></html>"""


async def fetched(service, url, extract_type="text", **config):
    result = await FetchPage(service).invoke("alice", config, {"url": url, "extract_type": extract_type})
    assert result.success
    return result


async def failure(service, url, within=10.0, **config):
    """Return the error of a fetch, which must end in time and say what to do next."""
    began = time.monotonic()
    with pytest.raises(ToolError) as raised:
        await fetched(service, url, **config)
    assert time.monotonic() - began < within
    error = raised.value.error
    assert len(error.message) < 1_000
    assert "; " in error.message
    return error.type, error.code
