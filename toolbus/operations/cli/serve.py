"""``serve``: offer the bus over HTTP."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Annotated, NamedTuple

import click

from toolbus import ToolBus
from toolbus.operations.cli.command import Groups, Names, Number, Port, ProcessOptions, Seconds, User, command, option, setting
from toolbus.operations.cli.common import EXPORTER_PORT, GATEWAY_PORT, reason, serving_settings, settings_with_server
from toolbus.operations.cli.failing import fail, needing, wrong_if
from toolbus.operations.cli.worker import announced, end_with

_KEYS = ("keys",)


class Access(NamedTuple):
    """The options of who may use the gateway."""

    tokens: Annotated[str | None, option("File of bearer tokens, see `toolbus secure tokens add --file`.", type=click.Path())]
    shared_tokens: Annotated[bool, option("Accept the tokens that `toolbus secure tokens` keeps on the server.")]
    keys: Annotated[str | None, option("Keys that verify JSON Web Tokens (JWKS).", "--jwt-keys", metavar="URL|FILE")]
    issuer: Annotated[str | None, option("What their `iss` must be.", "--jwt-issuer", needs=_KEYS)]
    audiences: Annotated[tuple[str, ...], option("What their `aud` must have (may be repeated).", "--jwt-audience", needs=_KEYS)]
    user_claim: Annotated[str, option("The claim with the user.", "--jwt-user", default="sub", needs=_KEYS)]
    groups_claim: Annotated[str | None, option("The claim with the groups of tools; without it all groups.", "--jwt-groups", needs=_KEYS)]
    tools_claim: Annotated[str | None, option("The claim with the names of tools; without it all tools.", "--jwt-tools", needs=_KEYS)]
    permissions_claim: Annotated[
        str | None, option("The claim with permissions, such as scope; without it, to call.", "--jwt-permissions", needs=_KEYS)
    ]
    rate: Annotated[str | None, option("Most requests of a token that has no rate of its own, such as 100/minute.")]
    public_url: Annotated[str | None, option("The gateway's URL as clients see it.")]
    origins: Annotated[tuple[str, ...], option("A site whose pages may use the gateway (may be repeated).", "--cors", metavar="ORIGIN")]


@command("serve", env="TOOLBUS_GATEWAY_")
def serve_command(
    host: Annotated[str, option("Address to listen at.", default="127.0.0.1")],
    port: Annotated[Port, option("Port; 0 for a free one.", default=GATEWAY_PORT)],
    is_open: Annotated[bool, option("Let everybody in who can reach the port.", "--open")],
    chat: Annotated[str, option("Tool or service that answers POST /chat.", default="chat", metavar="NAME")],
    grace: Annotated[float | None, setting("grace", "Seconds that answers may take to finish on SIGTERM", type=Seconds(86_400))],
    resume: Annotated[
        float, option("Seconds that a call with an Idempotency-Key goes on when its client has gone.", type=Seconds(3600), default=10.0)
    ],
    heartbeat: Annotated[float, option("Longest silence of a stream of events, in seconds.", type=Seconds(3600), default=15.0)],
    buffer: Annotated[
        float,
        option(
            "Most megabytes that all streams together hold for clients that read slowly.",
            type=Number(1, 1_000_000),
            default=128.0,
            metavar="MB",
        ),
    ],
    process: ProcessOptions,
    access: Access,
    listening: Annotated[int | None, option(hidden=True, kept=True)],
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
    from toolbus.bus.worker.process.event_loop import run_loop

    with needing("gateway", "the gateway"):
        from toolbus.edges.gateway.auth.options import AuthOptions, authenticator_of
        from toolbus.edges.gateway.guards import GuardOptions, Guards, KnownHosts, is_loopback, origin_of
        from toolbus.edges.gateway.options import Everyone, GatewayOptions
        from toolbus.edges.gateway.serving import listen, serve
    settings = serving_settings("gateway", grace=grace)
    given = {name: value for name, value in access._asdict().items() if value is not None}
    sites = given.pop("origins")
    auth = AuthOptions(**given)
    # A proxy may hand requests on under another name than that of the gateway's own page.
    guards = GuardOptions(origins=(*sites, origin_of(auth.public_url)) if auth.public_url else sites)
    wrong_if(is_open and auth.asked, "--open lets everybody in, and tokens are for a gateway that does not; give one of them")
    if not is_loopback(host) and not is_open and not auth.asked:
        ways = "give --tokens, --shared-tokens or --jwt-keys; --open lets everybody in who can reach it"
        fail(f"without tokens a gateway listens on this machine only, not at {host!r}; {ways}")
    place = listen(host, port) if listening is None else socket.socket(fileno=listening)
    options = GatewayOptions(chat=chat, resume=resume, heartbeat=heartbeat, buffer=buffer)

    async def main() -> None:
        from toolbus.edges.gateway.app import application
        from toolbus.edges.gateway.gateway import Gateway
        from toolbus.edges.gateway.metrics import ProbedGateway

        end_with(process, settings)
        async with ToolBus(settings=settings) as bus:
            authenticator = authenticator_of(bus, auth)
            gateway = Gateway(bus, authenticator or Everyone(), options)
            app = Guards(application(gateway), guards)
            served = app if is_open or authenticator is not None else KnownHosts(app)
            async with announced(lambda: ProbedGateway(gateway), process) as (serving, stopping):
                await serve(served, gateway, place, grace=settings.grace, on_serving=serving, on_stopping=stopping)

    with place:
        run_loop(main)
    sys.stdout.flush()


@command("exporter")
def exporter_command(
    host: Annotated[str, option("Address to listen at; anybody who can reach it may read.", default="127.0.0.1")],
    port: Annotated[Port, option("Port; 0 for a free one.", default=EXPORTER_PORT)],
) -> None:
    """Answer /metrics for Prometheus: the queues of the namespace, and what `toolbus doctor` would find.

    A gateway answers the same at its health port; this is for a pool without one. It needs the rights of `toolbus secure acl monitor`,
    and goes on while the server is away.

    \b
    Examples:
      toolbus operate exporter
      toolbus operate exporter --host 0.0.0.0 --port 9100
    """
    from toolbus.operations.exporter import export

    settings = serving_settings("exporter")
    try:
        asyncio.run(export(settings, host, port))
    except OSError as error:
        fail(f"can't listen at {host}:{port}: {reason(error)}; choose another place with --host and --port")


@command("mcp")
def mcp_command(user: User, groups: Groups, names: Names) -> None:
    """Serve the tools to an MCP client on stdio.

    The client starts this command by itself; standard input and output carry the protocol. It ends with standard input.

    \b
    Example, as a client's configuration has it:
      {"mcpServers": {"toolbus": {"command": "toolbus", "args": ["mcp"]}}}
    """
    settings = settings_with_server(serves=True)
    with needing("mcp", "MCP"):
        from toolbus.edges.gateway.options import Principal
        from toolbus.edges.mcp.http import serve_stdio

    caller = Principal("stdio", user=user, groups=frozenset(groups) or None, tools=frozenset(names) or None)

    async def main() -> None:
        async with ToolBus(settings=settings) as bus:
            await serve_stdio(bus, caller)

    asyncio.run(main())
