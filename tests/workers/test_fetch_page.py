"""``fetch_page``: what it makes of honest pages, and that hostile servers get nothing from it."""

import gzip
import ssl
import zlib

import pytest
import trustme
from toolbus_workers.fetch_page import FetchPage

from tests.workers.fetching import HTML, failure, fetched
from tests.workers.pages import answer, local, names, redirect, site
from toolbus import ToolBus, ToolError, Worker

pytestmark = pytest.mark.anyio


async def test_text_is_what_a_reader_sees():
    """Blocks are lines, lists and headings are marked, and scripts, styles and hidden parts are left out."""
    async with site(answer(HTML)) as there:
        result = await fetched(local(), there.url())
    assert result.data == {"text": result.output}
    lines = [line for line in result.output.splitlines() if line]
    assert lines == ["Home", "# Bees", "Bees make honey.", "Much of it.", "- one", "- two", "1 2", "no Other page A bee mailbad"]


async def test_links_are_absolute_and_lead_to_pages_once():
    """Relative links follow the base element; scripts, mail and broken addresses are no links."""
    async with site(answer(HTML)) as there:
        result = await fetched(local(), there.url("/deep/er"), "links")
    home = there.url("/a/b.html")
    assert result.data == {"links": [{"text": "Home", "href": home}, {"text": "Other page", "href": "http://other.test/x"}]}
    assert result.output == f"- Home: {home}\n- Other page: http://other.test/x"


async def test_structured_is_title_text_and_the_first_twenty_links():
    """One call for everything."""
    page = "<title>Many</title><p>Text</p>" + "".join(f"<a href=/{n}>{n}</a>" for n in range(600))
    async with site(answer(page)) as there:
        result = await fetched(local(), there.url(), "structured")
        links = await fetched(local(), there.url(), "links")
    assert sorted(result.data) == ["links", "text", "title"]
    assert result.data["title"] == "Many"
    assert [link["text"] for link in result.data["links"]] == [str(n) for n in range(20)]
    assert result.output.startswith("# Many\n\nText\n")
    assert len(links.data["links"]) == 500


@pytest.mark.parametrize(
    ("body", "media_type", "text"),
    [
        ('{"a": "é"}', "application/json", '{"a": "é"}'),
        ("plain <b>text</b>", "text/plain; charset=utf-8", "plain <b>text</b>"),
        ("<p>No type", None, "No type"),
        ("Grüße".encode("latin-1"), "text/html; charset=utf-8", "Grüße"),
        ("Привет".encode("koi8-r"), "text/html; charset=KOI8-R", "Привет"),
        ("<p>Grüße".encode("utf-16"), "text/html", "Grüße"),
        ("Grüße", "text/html; charset=klingon", "Grüße"),
        (b"\xfa\xff\xfe ok", "text/plain; charset=utf-8", "úÿþ ok"),
        ("", "text/html", ""),
    ],
)
async def test_text_survives_wrong_and_missing_headers(body, media_type, text):
    """Charset and type are what the bytes show, when the headers are wrong about them."""
    async with site(answer(body, media_type=media_type)) as there:
        assert (await fetched(local(), there.url())).data == {"text": text}


@pytest.mark.parametrize(
    "body",
    [
        "<p>one<table><p>two</b></i><div><p>three</table></html>four<<<!-- <!--> <a href=x",
        "<p " + "x=' " * 1_000 + "one two three four",
        "<title><script>one</title><plaintext>one two three four</plaintext>",
        "<svg><p>one two three four<math><mtext></p></svg>",
    ],
)
async def test_malformed_html_is_read_as_well_as_it_goes(body):
    """Broken markup is no failure."""
    async with site(answer(body)) as there:
        assert isinstance((await fetched(local(), there.url())).data["text"], str)


@pytest.mark.usefixtures("slow")
async def test_long_pages_are_cut_and_say_so():
    """The text is bounded, by the tool's config too."""
    async with site(answer("<p>honey " * 50_000)) as there:
        whole = await fetched(local(), there.url())
        short = await fetched(local(), there.url(), max_chars=100)
    assert len(whole.data["text"]) == 100_000
    assert len(short.data["text"]) == 100
    assert short.output.endswith("only its beginning is shown")


PACKED = {
    "gzip": gzip.compress(b"<p>ho") + gzip.compress(b"ney"),
    "GZIP": gzip.compress(b"<p>honey"),
    "deflate": zlib.compress(b"<p>honey"),
    "Deflate": zlib.compress(b"<p>honey", wbits=-15),
}


@pytest.mark.parametrize(("encoding", "body"), PACKED.items(), ids=PACKED)
async def test_compressed_pages_are_unpacked(encoding, body):
    """gzip, also in several members, and deflate with and without its header."""
    async with site(answer(body, f"Content-Encoding: {encoding}")) as there:
        assert (await fetched(local(), there.url())).data == {"text": "honey"}


@pytest.mark.parametrize(("encoding", "body"), PACKED.items(), ids=PACKED)
async def test_a_page_that_was_cut_off_is_no_page(encoding, body):
    """Compressed data that ends too early is an error, wherever it was cut."""
    for end in (1, 2, 9, len(body) - 1):
        async with site(answer(body[:end], f"Content-Encoding: {encoding}")) as there:
            with pytest.raises(ToolError, match="cut off") as raised:
                await fetched(local(), there.url())
        assert raised.value.error.retryable


async def test_redirects_are_followed_to_the_page():
    """Relative and absolute ones; links are relative to where the page was found."""
    async with site({"/": redirect("/b/c", 301), "/b/c": redirect("d", 307), "/b/d": answer("<a href=e>x</a>")}) as there:
        assert (await fetched(local(), there.url(), "links")).data == {"links": [{"text": "x", "href": there.url("/b/e")}]}


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, "not_found"), (410, "not_found"), (403, "forbidden"), (429, "rate_limited"), (503, "unavailable"), (418, "tool_error")],
)
async def test_a_status_becomes_an_error_with_a_type(status, error):
    """A page that says no is a failure, not a text."""
    async with site(answer("<p>sorry", "Retry-After: 7", status=status)) as there:
        with pytest.raises(ToolError) as raised:
            await fetched(local(), there.url())
    assert (raised.value.error.type, raised.value.error.code) == (error, f"http_{status}")
    assert raised.value.error.retry_after == (7 if status in {429, 503} else None)


@pytest.mark.parametrize(
    "url",
    [
        "", "example.com", "file:///etc/passwd", "ftp://example.com/", "gopher://127.0.0.1:6379/_x", "data:text/html,x",
        "javascript:alert(1)", "http://", "http:///x", "http://user:secret@example.com/", "http://example.com:22/",
        "http://example.com:99999/", "http://exa mple.com:x/", "http://xn--/", "http://[::1", "http://e.test/" + "x" *
        4_096,
    ],
)  # fmt: skip
async def test_what_is_no_web_address_is_refused(url):
    """Other schemes, credentials and ports of other services are refused before anything is looked up."""
    assert (await failure(local(resolve=names()), url))[0] == "invalid_arguments"


@pytest.mark.parametrize("arguments", [{}, {"url": 5}, {"url": "http://x.test", "extract_type": "picture"}])
async def test_arguments_that_do_not_fit_are_named(arguments):
    """Also when they come through a tool whose types nobody enforced."""
    with pytest.raises(ToolError, match=r"\$\.|url|extract_type") as raised:
        await FetchPage(local()).invoke("alice", {}, arguments)
    assert raised.value.error.type == "invalid_arguments"


@pytest.mark.parametrize("config", [{"max_bytes": 10**9}, {"max_seconds": 3_600}, {"max_chars": "many"}, {"hosts": 5}])
async def test_config_can_only_narrow(config):
    """A caller that makes up config values gets no more than the service allows."""
    async with site(answer(HTML)) as there:
        assert (await failure(local(), there.url(), **config))[1] == "bad_config"
        assert not there.asked


async def test_config_names_the_hosts_that_may_be_fetched():
    """Subdomains are included, look-alikes are not, and redirects do not lead out."""
    resolve = names(bees_test="127.0.0.1", www_bees_test="127.0.0.1", wasps_test="127.0.0.1", notbees_test="127.0.0.1")
    async with site({"/": answer(HTML), "/out": redirect("http://wasps.test/")}) as there:
        for host in ("bees.test", "www.bees.test", "BEES.test"):
            assert (await fetched(local(resolve=resolve), there.url(host=host), hosts=["bees.test"])).success
        for target, host in (("/", "wasps.test"), ("/", "notbees.test"), ("/out", "bees.test")):
            error = await failure(local(resolve=resolve), there.url(target, host), hosts=["bees.test"])
            assert error == ("forbidden", "forbidden_host")


# -- where it connects to --------------------------------------------------------------------------------


async def test_loopback_is_forbidden_unless_the_service_was_built_for_it():
    """The service that a worker makes by itself reaches no local server, whatever the name, and no config changes that."""
    async with site(answer("secret")) as there:
        for host in ("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"):
            error = await failure(None, there.url(host=host), hosts=[host.strip("[]")])
            assert error[1] in {"forbidden_address", "unknown_host"}
        assert not there.asked


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("http://169.254.169.254/latest/meta-data/", ("forbidden", "forbidden_address")),
        ("//169.254.169.254/", ("forbidden", "forbidden_address")),
        ("http://[::ffff:169.254.169.254]/", ("forbidden", "forbidden_address")),
        ("http://metadata.test/", ("forbidden", "forbidden_address")),
        ("http://10.0.0.1:8080/", ("forbidden", "forbidden_address")),
        ("file:///etc/passwd", ("forbidden", "bad_redirect")),
        ("gopher://127.0.0.1:6379/_FLUSHALL", ("forbidden", "bad_redirect")),
        ("http://user:password@127.0.0.1/", ("forbidden", "bad_redirect")),
        ("http://127.0.0.1:25/", ("forbidden", "bad_redirect")),
        ("http://[::1", ("tool_error", "bad_redirect")),
        ("/", ("tool_error", "too_many_redirects")),
    ],
)
async def test_redirects_are_checked_like_the_first_address(location, error):
    """Not to metadata services, private networks, files, other services, or round in circles."""
    resolve = names(metadata_test="169.254.169.254")
    async with site(redirect(location)) as there:
        assert await failure(local(resolve=resolve), there.url()) == error
        assert len(there.asked) == (6 if error[1] == "too_many_redirects" else 1)


async def test_a_name_with_a_private_address_among_public_ones_is_not_connected_to():
    """Mixed answers are refused, in any order."""
    async with site(answer("secret"), host="127.0.0.2") as there:
        for addresses in ("127.0.0.1 127.0.0.2", "127.0.0.2 127.0.0.1"):
            service = local(resolve=names(mixed_test=addresses))
            assert await failure(service, there.url(host="mixed.test")) == ("forbidden", "forbidden_address")
        assert not there.asked


async def test_the_checked_address_is_the_one_that_is_connected_to():
    """A name that resolves to something else after the check changes nothing: it is looked up once."""
    answers = ["127.0.0.1", "127.0.0.2", "127.0.0.2"]
    async with site(answer("<p>public")) as public, site(answer("secret"), host="127.0.0.2", port=public.port) as private:
        result = await fetched(local(resolve=names(rebinding_test=answers)), public.url(host="rebinding.test"))
        assert result.data == {"text": "public"}
        assert public.asked[0].headers["host"] == f"rebinding.test:{public.port}"
        assert not private.asked
    assert answers == ["127.0.0.2", "127.0.0.2"]


async def test_a_name_that_changes_before_a_redirect_is_checked_again():
    """The second look-up of a rebinding name is refused."""
    answers = ["127.0.0.1", "127.0.0.2"]
    async with site(redirect("/again")) as public, site(answer("secret"), host="127.0.0.2", port=public.port) as private:
        error = await failure(local(resolve=names(rebinding_test=answers)), public.url(host="rebinding.test"))
        assert error == ("forbidden", "forbidden_address")
        assert not private.asked


async def test_the_next_checked_address_is_tried_when_one_does_not_answer():
    """As a browser would."""
    async with site(answer("<p>here"), host="127.0.0.2") as there:
        service = local(allow=("127.0.0.0/8",), resolve=names(two_test="127.0.0.3 127.0.0.2"))
        assert (await fetched(service, there.url(host="two.test"))).data == {"text": "here"}


async def test_ipv6_addresses_are_fetched_and_checked_too():
    """As a literal and behind a name; the brackets stay in the Host header."""
    try:
        async with site(answer("<p>six"), host="::1") as there:
            literal = await fetched(local(), there.url(host="[::1]"))
            named = await fetched(local(resolve=names(six_test="::1")), there.url(host="six.test"))
            assert [request.headers["host"] for request in there.asked] == [f"[::1]:{there.port}", f"six.test:{there.port}"]
            assert (await failure(local(allow=("127.0.0.1/32",)), there.url(host="[::1]")))[1] == "forbidden_address"
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert literal.data == named.data == {"text": "six"}


async def test_tls_is_verified_for_the_name_although_the_address_is_connected_to():
    """SNI and certificate are about the host of the address; a certificate of another host is refused."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("bees.test").configure_cert(server)
    shown = []
    server.sni_callback = lambda _socket, name, _context: shown.append(name)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    resolve = names(bees_test="127.0.0.1", wasps_test="127.0.0.1")
    async with site(answer("<p>safe"), tls=server) as there:
        url = f"https://bees.test:{there.port}/"
        assert (await fetched(local(resolve=resolve, tls=client), url)).data == {"text": "safe"}
        assert shown == ["bees.test"]
        assert await failure(local(resolve=resolve, tls=client), url.replace("bees", "wasps")) == ("unavailable", "bad_certificate")
        assert await failure(local(resolve=resolve), url) == ("unavailable", "bad_certificate")


async def test_proxies_of_the_environment_are_not_used(monkeypatch):
    """A proxy would resolve names by itself, past the guard."""
    async with site(answer("proxied")) as proxy, site(answer("<p>direct")) as there:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert (await fetched(local(), there.url())).data == {"text": "direct"}
        assert not proxy.asked


# -- served ----------------------------------------------------------------------------------------------


async def test_it_is_served_with_its_schema_and_its_errors(url, namespace):
    """Over a bus: the result has data and text, arguments are enforced, and a failure is a value."""
    async with (
        site({"/": answer(HTML), "/in": redirect("http://169.254.169.254/")}) as there,
        Worker([FetchPage(local())], url=url, namespace=namespace),
        ToolBus(url, namespace=namespace) as bus,
    ):
        await bus.wait_for_tool("fetch_page", 10)
        good = await bus.call("fetch_page", {"url": there.url(), "extract_type": "structured"})
        inward = await bus.call("fetch_page", {"url": there.url("/in")})
        wrong = await bus.call("fetch_page", {"url": there.url(), "extract_type": "picture"})
    assert good.data["title"] == "The hive"
    assert "Bees make honey." in good.output
    assert (inward.error.type, inward.error.code) == ("forbidden", "forbidden_address")
    assert wrong.error.type == "invalid_arguments"
