"""``serve``: offer the bus over HTTP."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolbus.bus.values.settings import Settings
from toolbus.operations.cli.common import GATEWAY_PORT, Seconds, fail, needs_gateway, settings_with_server
from toolbus.operations.cli.doctor import ProbePlace, health_options, probing

if TYPE_CHECKING:
    from toolbus.edges.gateway.auth.options import AuthOptions
    from toolbus.edges.gateway.guards import GuardOptions
    from toolbus.edges.gateway.options import GatewayOptions

F = TypeVar("F", bound=Callable[..., Any])

_ENV = "TOOLBUS_GATEWAY_"
_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--tokens", "tokens", {"type": click.Path(), "help": "File of bearer tokens, see `toolbus tokens add --file`."}),
    ("--shared-tokens", "shared_tokens", {"is_flag": True, "help": "Accept the tokens that `toolbus tokens` keeps on the server."}),
    ("--jwt-keys", "keys", {"metavar": "URL|FILE", "help": "Keys that verify JSON Web Tokens (JWKS)."}),
    ("--jwt-issuer", "issuer", {"help": "What their `iss` must be."}),
    ("--jwt-audience", "audiences", {"multiple": True, "help": "What their `aud` must have (may be repeated)."}),
    ("--jwt-user", "user_claim", {"default": "sub", "show_default": True, "help": "The claim with the user."}),
    ("--jwt-groups", "groups_claim", {"help": "The claim with the groups of tools; without it all groups."}),
    ("--jwt-tools", "tools_claim", {"help": "The claim with the names of tools; without it all tools."}),
    ("--jwt-permissions", "permissions_claim", {"help": "The claim with permissions, such as scope; without it, to call."}),
    ("--rate", "rate", {"help": "Most requests of a token that has no rate of its own, such as 100/minute."}),
    ("--public-url", "public_url", {"help": "The gateway's URL as clients see it."}),
    ("--cors", "origins", {"multiple": True, "metavar": "ORIGIN", "help": "A site whose pages may use the gateway (may be repeated)."}),
)


def access_options(function: F) -> F:
    """Add the options, which the function gets as one dictionary, ``access``."""
    names = [name for _, name, _ in _OPTIONS]

    @wraps(function)
    def collected(*args: Any, **given: Any) -> Any:
        access = {name: given.pop(name) for name in names}
        return function(*args, access={name: value for name, value in access.items() if value is not None}, **given)

    made: Any = collected
    for option, name, about in reversed(_OPTIONS):
        variable = f"{_ENV}{option.removeprefix('--').replace('-', '_').upper()}"
        made = click.option(option, name, envvar=variable, **about)(made)
    found: F = made
    return found


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, envvar=f"{_ENV}HOST", help="Address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=GATEWAY_PORT,
    show_default=True,
    envvar=f"{_ENV}PORT",
    help="Port; 0 for a free one.",
)
@click.option("--open", "is_open", is_flag=True, envvar=f"{_ENV}OPEN", help="Let everybody in who can reach the port.")
@click.option(
    "--chat", default="chat", show_default=True, metavar="NAME", envvar=f"{_ENV}CHAT", help="Tool or service that answers POST /chat."
)
@click.option(
    "--grace", type=Seconds(86_400), help="Seconds that answers may take to finish on SIGTERM (TOOLBUS_GRACE; 30).",
)  # fmt: skip
@click.option(
    "--resume",
    type=Seconds(3600),
    default=10.0,
    show_default=True,
    envvar=f"{_ENV}RESUME",
    help="Seconds that a call with an Idempotency-Key goes on when its client has gone.",
)
@click.option(
    "--heartbeat",
    type=Seconds(3600),
    default=15.0,
    show_default=True,
    envvar=f"{_ENV}HEARTBEAT",
    help="Longest silence of a stream of events, in seconds.",
)
@click.option(
    "--buffer",
    type=click.FloatRange(1, 1_000_000),
    default=128.0,
    show_default=True,
    metavar="MB",
    envvar=f"{_ENV}BUFFER",
    help="Most megabytes that all streams together hold for clients that read slowly.",
)
@health_options(_ENV)
@access_options
@click.option("--listening", type=int, hidden=True)
@click.option("--lifeline", type=int, hidden=True)
@click.pass_context
def serve_command(
    ctx: click.Context,
    host: str,
    port: int,
    is_open: bool,
    chat: str,
    grace: float | None,
    resume: float,
    heartbeat: float,
    buffer: float,
    health_host: str,
    health_port: int | None,
    listening: int | None,
    lifeline: int | None,
    access: dict[str, Any],
) -> None:
    """Offer the tools of the bus over HTTP.

    Programs in any language list and call tools (GET /tools, POST /run_tool, and an operation for each tool in /openapi.json), and
    read their answers as server-sent events. Any number of these processes may serve one namespace.

    Without tokens it serves programs on this machine only: give --tokens, --shared-tokens or --jwt-keys before it listens elsewhere.

    Each option can also be set in the environment: TOOLBUS_GATEWAY_PORT=8080. SIGTERM and Ctrl-C let answers finish, and exit with 0.

    \b
    Examples:
      toolbus serve
      toolbus serve --port 8080 --chat my-assistant
      toolbus serve --host 0.0.0.0 --tokens tokens.json
      curl localhost:8001/run_tool --json '{"tool_id": "calculator", "params": {"expression": "6*7"}}'
    """
    from toolbus.bus import telemetry
    from toolbus.bus.worker.process.event_loop import run_loop

    try:
        from toolbus.edges.gateway.auth.options import AuthOptions
        from toolbus.edges.gateway.guards import GuardOptions, is_loopback, origin_of
        from toolbus.edges.gateway.options import GatewayOptions
        from toolbus.edges.gateway.serving import listen
    except ImportError as error:
        fail(needs_gateway(error))
    settings = settings_with_server(ctx, serves=True, grace=grace)
    sites = access.pop("origins")
    auth = AuthOptions(**access)
    # A proxy may hand requests on under another name than that of the gateway's own page.
    guards = GuardOptions(origins=(*sites, origin_of(auth.public_url)) if auth.public_url else sites)
    if is_open and auth.asked:
        raise click.UsageError("--open lets everybody in, and tokens are for a gateway that does not; give one of them")
    if not is_loopback(host) and not is_open and not auth.asked:
        ways = "give --tokens, --shared-tokens or --jwt-keys; --open lets everybody in who can reach it"
        fail(f"without tokens a gateway listens on this machine only, not at {host!r}; {ways}")
    telemetry.configure_logging(settings.log_level, settings.log_format)
    telemetry.configure_export("toolbus-gateway")
    place = listen(host, port) if listening is None else socket.socket(fileno=listening)
    probed = ProbePlace(health_host, health_port)
    options = GatewayOptions(chat=chat, resume=resume, heartbeat=heartbeat, buffer=buffer)
    with place:
        run_loop(lambda: _serve(settings, options, auth, guards, place, probed, lifeline, is_open=is_open))
    sys.stdout.flush()


async def _serve(
    settings: Settings,
    options: GatewayOptions,
    auth: AuthOptions,
    guards: GuardOptions,
    place: socket.socket,
    probed_at: ProbePlace,
    lifeline: int | None,
    *,
    is_open: bool,
) -> None:
    from toolbus import ToolBus
    from toolbus.bus.worker.process.lifeline import Notifier, Told, end_process, tell, watch_lifeline
    from toolbus.edges.gateway.app import application
    from toolbus.edges.gateway.auth.options import authenticator_of
    from toolbus.edges.gateway.gateway import Gateway
    from toolbus.edges.gateway.guards import KnownHosts, guarded
    from toolbus.edges.gateway.metrics import ProbedGateway
    from toolbus.edges.gateway.options import Everyone
    from toolbus.edges.gateway.serving import serve

    notifier = Notifier()

    if lifeline is not None:
        watch_lifeline(lifeline, end_process, settings.grace)
    async with ToolBus(settings=settings) as bus:
        authenticator = authenticator_of(bus, auth)
        gateway = Gateway(bus, authenticator or Everyone(), options)
        app = guarded(application(gateway), guards)
        served = app if is_open or authenticator is not None else KnownHosts(app)
        async with probing(lambda: ProbedGateway(gateway), probed_at) as (probed, _), notifier.alive():

            def serving() -> None:
                if probed is not None:
                    probed.started = True
                tell(lifeline, Told(serving=True))
                notifier.ready()

            await serve(served, gateway, place, grace=settings.grace, on_serving=serving, on_stopping=notifier.stopping)


@click.command("mcp")
@click.option("--user", default="", help="The tenant that tools run for.")
@click.option("--group", "groups", multiple=True, help="Only tools in this group (may be repeated).")
@click.option("--tool", "names", multiple=True, help="Only this tool (may be repeated).")
@click.pass_context
def mcp_command(ctx: click.Context, user: str, groups: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Serve the tools to an MCP client on stdio.

    The client starts this command by itself; standard input and output carry the protocol. It ends with standard input.

    \b
    Example, as a client's configuration has it:
      {"mcpServers": {"toolbus": {"command": "toolbus", "args": ["mcp"]}}}
    """
    settings = settings_with_server(ctx, serves=True)
    if find_spec("mcp") is None:
        fail("MCP needs its SDK: pip install 'toolbus[mcp]'")
    import asyncio

    from toolbus import ToolBus
    from toolbus.edges.mcp.client import LocalCaller
    from toolbus.edges.mcp.http import serve_stdio

    caller = LocalCaller(user=user, groups=frozenset(groups) or None, tools=frozenset(names) or None)

    async def main() -> None:
        async with ToolBus(settings=settings) as bus:
            await serve_stdio(bus, caller)

    asyncio.run(main())
