"""From services to handlers: what is published, and what runs for each tool."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from toolbus import telemetry
from toolbus.descriptors import (
    Effect,
    Publication,
    ToolDescriptor,
    check_tool,
    parse_service,
    parse_tool,
)
from toolbus.envelope import Request
from toolbus.results import ConfigurationError, DescriptorError, ToolError
from toolbus.schema import check_for, derive, mended, mended_document
from toolbus.settings import Settings
from toolbus.worker.base import ToolService
from toolbus.worker.function import FunctionTool, service_name, tool_of, tools_of_service
from toolbus.worker.isolation.targets import target_of
from toolbus.worker.modules import defined_in
from toolbus.worker.provide import Services, injected
from toolbus.worker.retry import Retry

if TYPE_CHECKING:
    from toolbus.worker.sessions import Session, SessionBook

_MOST_DESCRIPTION = 16_384

Start = Callable[[Request], Any]
"""Binds a request and starts its handler: a value, an awaitable, or a sync or async iterator."""


class Handler:
    """How one tool runs.

    Attributes:
        start: binds the request's arguments and calls the function; raises ToolError when they do not fit.
        coroutine: the function is a coroutine function, the most frequent kind.
        threaded: the function is plain, so calling it belongs in a thread.
        effect: the declared effect, or empty.
        retry: when a failed run is tried again, or None.
        isolated: the tool, when it runs in a child process; ``start`` is not called then.
        check: refuses arguments that do not fit; raises ToolError.
        tenants: the only users whose calls run; empty for everybody's.
    """

    __slots__ = ("check", "coroutine", "effect", "isolated", "retry", "start", "tenants", "threaded")

    def __init__(
        self,
        function: Callable[..., Any],
        start: Start,
        effect: Effect,
        retry: Retry | None,
        isolated: FunctionTool | None = None,
        check: Callable[[Mapping[str, Any]], object] | None = None,
        tenants: Iterable[str] = (),
    ) -> None:
        self.start = start
        self.isolated = isolated
        self.check = check
        called = function if inspect.isroutine(function) or isinstance(function, functools.partial) else type(function).__call__
        self.coroutine = inspect.iscoroutinefunction(called) and isolated is None
        self.threaded = isolated is None and not self.coroutine and not inspect.isasyncgenfunction(called)
        self.effect = effect
        self.retry = None if effect == "once" else retry
        self.tenants = frozenset(tenants)


class Served:
    """One service as this process serves it.

    Attributes:
        sessions: the open ones, while a worker serves a service that has any.
        session_idle, max_sessions: what the service says of them.
    """

    def __init__(
        self, publication: Publication, handlers: Mapping[str, Handler], untyped: Handler | None, service: ToolService | None
    ) -> None:
        self.publication = publication
        self._handlers = handlers
        self._untyped = untyped
        self._service = service
        self.sessions: SessionBook | None = None
        self._cleans_sessions = service is not None and _takes_session(service)
        self.session_idle = math.inf if service is None else _positive(service, "session_idle")
        self.max_sessions = 0 if service is None else _positive(service, "max_sessions")

    @property
    def id(self) -> str:
        """The service's id."""
        return self.publication.service.id

    def handler(self, request: Request) -> Handler:
        """The handler of a request.

        :raises ToolError: there is none.
        """
        found = self._handlers.get(request.tool) or self._untyped
        if found is not None and found.tenants and request.user not in found.tenants:
            raise ToolError(f"the tool {request.tool!r} is for other tenants", type="forbidden")
        if found is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise ToolError(f"service {self.id!r} has no tool {request.tool!r} (it has: {known})", type="not_found")
        return found

    def undeclared(self) -> list[str]:
        """Tools that do not say what a second execution would do."""
        return sorted(name for name, handler in self._handlers.items() if not handler.effect)

    def isolated(self) -> list[FunctionTool]:
        """Tools whose handlers run in child processes."""
        return [handler.isolated for handler in self._handlers.values() if handler.isolated is not None]

    async def startup(self) -> None:
        """Run the service's own preparation."""
        if self._service is not None:
            await _await(self._service.startup())

    @property
    def has_sessions(self) -> bool:
        """Whether its sessions are to be kept: it cleans up after them, or wants the calls of each at one worker."""
        return self._cleans_sessions or self.publication.service.sticky_sessions

    async def cleanup(self, session: Session | None = None) -> None:
        """Run the service's own clean-up: after a session if it wants that, or with None after everything."""
        if self._service is None:
            return
        if not self._cleans_sessions:
            if session is None:
                await _await(self._service.cleanup())
            return
        clean: Callable[[Session | None], Any] = self._service.cleanup  # type: ignore[assignment] # its own signature was looked at
        if inspect.iscoroutinefunction(clean):
            await clean(session)
        else:
            await _await(await asyncio.to_thread(clean, session))


def collect(targets: object, settings: Settings, services: Services | None = None) -> list[Served]:
    """What to serve: services (classes or instances), decorated functions, modules, packages, or lists of them.

    A tool with a parameter for a service that nobody provides is left out, and named in the log.

    :param services: what handlers' parameters are filled in with; those of the process when left out.
    :raises ConfigurationError: a target is not a tool, or two services have one id.
    """
    services = Services() if services is None else services
    instances: dict[str, ToolService] = {}
    functions: dict[str, dict[str, FunctionTool]] = {}
    for target in _flat(targets):
        if isinstance(target, ToolService):
            name = target.id or type(target).__name__
            if instances.get(name, target) is not target:
                raise ConfigurationError(f"two services have the id {name!r}")
            instances[name] = target
            continue
        for found in _functions(target):
            functions.setdefault(found.service, {})[found.name] = found
    for name in functions.keys() & instances.keys():
        raise ConfigurationError(f"both a ToolService and decorated functions form the service {name!r}")
    served = [_served_service(name, service, settings, services) for name, service in instances.items()]
    served += filter(None, (_served_functions(name, list(tools.values()), settings, services) for name, tools in functions.items()))
    if not served and functions:
        raise ConfigurationError("there is nothing to serve: every tool needs a service that nobody provides; see toolbus.provide()")
    if not served:
        raise ConfigurationError("there is nothing to serve: give a ToolService, functions decorated with @tool, or a module with them")
    return served


def _flat(targets: object) -> Iterable[object]:
    if isinstance(targets, (list, tuple, set, frozenset)):
        for target in targets:
            yield from _flat(target)
    elif isinstance(targets, type) and issubclass(targets, ToolService):
        yield targets()
    elif isinstance(targets, ModuleType):
        yield from _flat(defined_in(targets))
    else:
        yield targets


def _functions(target: object) -> list[FunctionTool]:
    found = tool_of(target)
    if found is None and callable(target) and tool_of(inspect.unwrap(target)) is not None:
        raise ConfigurationError(f"{target!r} wraps a tool: put @tool above the other decorators, so that the tool is what they make")
    if found is None:
        raise ConfigurationError(f"{target!r} is not a tool: decorate it with @tool, or give a ToolService or a module")
    if not found.service:
        raise ConfigurationError(f"{found.origin} is a method; give its ToolService instead")
    # A service is served whole, or replicas would differ.
    return tools_of_service(found.service)


# -- services -----------------------------------------------------------------------------------------


def _served_service(name: str, service: ToolService, settings: Settings, services: Services) -> Served:
    cls = type(service)
    descriptor = parse_service(
        {
            "id": name,
            "config-params": list(service.config_params),
            "description": service.description or inspect.cleandoc(cls.__doc__ or "").partition("\n")[0],
            "request-queue": service.request_queue,
            "response-queue": service.response_queue,
            "scale_to_zero": service.scale_to_zero,
            "queue_limit": service.queue_limit,
            "sticky_sessions": service.sticky_sessions,
        }
    )
    invoke = None if cls.invoke is ToolService.invoke else service.invoke
    tools: dict[str, ToolDescriptor] = {}
    handlers: dict[str, Handler] = {}
    for index, document in enumerate(service.tools):
        if invoke is None:
            raise ConfigurationError(f"{cls.__name__} lists tools but does not override invoke()")
        try:
            proper, changes = mended_document(document)
            _tell(document.get("name"), name, changes)
            tool = parse_tool({"effect": service.effect, **proper}, descriptor)
        except DescriptorError as error:
            raise DescriptorError(f"{cls.__name__}.tools[{index}]: {error}", path=error.path) from None
        _add(tools, tool)
        handlers[tool.name] = _invoke_handler(invoke, tool, service)
    for attribute in dir(cls):
        made = tool_of(getattr(cls, attribute, None))
        if made is None:
            continue
        found = _function_handler(made, name, getattr(service, attribute), services, service.effect, service.retry)
        if found is not None:
            _add(tools, found[0])
            handlers[made.name] = found[1]
    untyped = None if invoke is None else _invoke_handler(invoke, None, service)
    owner = settings.owner or owner_of(cls.__module__, cls.__qualname__)
    publication = Publication(descriptor, tuple(tools[key] for key in sorted(tools)), owner).with_digest()
    return Served(publication, handlers, untyped, service)


def _invoke_handler(invoke: Callable[..., Any], tool: ToolDescriptor | None, service: ToolService) -> Handler:
    arity = _arity(invoke, type(service))
    check = None if tool is None else check_for(tool).check

    def start(request: Request) -> Any:
        if check is not None:
            check(request.arguments)
        if arity == 2:
            return invoke(request.config, request.arguments)
        return invoke(request.user, request.config, request.arguments)

    return Handler(
        invoke, start, service.effect if tool is None else tool.effect, service.retry, tenants=() if tool is None else tool.tenants
    )


def _takes_session(service: ToolService) -> bool:
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    return any(parameter.kind in positional for parameter in inspect.signature(service.cleanup).parameters.values())


def _positive(service: ToolService, name: str) -> Any:
    value = getattr(service, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigurationError(f"{type(service).__name__}.{name} must be a number above 0, not {value!r}")
    return value


def _arity(invoke: Callable[..., Any], cls: type) -> int:
    parameters = inspect.signature(invoke).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 3
    taken = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD} and p.default is p.empty]
    if len(taken) not in {2, 3}:
        raise ConfigurationError(
            f"{cls.__name__}.invoke takes (user, config, arguments) or (config, arguments), not {len(taken)} arguments"
        )
    return len(taken)


# -- functions ----------------------------------------------------------------------------------------


def _served_functions(name: str, functions: list[FunctionTool], settings: Settings, services: Services) -> Served | None:
    descriptor = parse_service({"id": name, "description": _module_summary(functions[0].module)})
    tools: dict[str, ToolDescriptor] = {}
    handlers: dict[str, Handler] = {}
    for made in functions:
        found = _function_handler(made, name, made.function, services)
        if found is not None:
            _add(tools, found[0])
            handlers[made.name] = found[1]
    if not tools:
        return None
    owner = settings.owner or owner_of(functions[0].module, "")
    publication = Publication(descriptor, tuple(tools[key] for key in sorted(tools)), owner).with_digest()
    return Served(publication, handlers, None, None)


def _function_handler(
    made: FunctionTool, service: str, bound: Callable[..., Any], services: Services, effect: Effect = "", retry: Retry | None = None
) -> tuple[ToolDescriptor, Handler] | None:
    """A function's descriptor and handler; None when it needs a service that nobody provides."""
    parameters = made.parameters
    if parameters is not None:
        parameters, changes = mended(parameters)
        _tell(made.name, service, changes)
    derived = derive(bound, parameters=parameters, injected=injected(made, bound, services))
    given = {name: type_ for name, type_ in derived.injected.items() if services.provides(type_)}
    spared = {name: value for name, value in derived.spared.items() if name not in given}
    for name, type_ in derived.injected.items():
        if name not in given and name not in spared:
            telemetry.log.warning("tool.left_out", tool=made.name, service=service, parameter=name, needs=type_.__qualname__)
            return None
    description = made.description or derived.description or made.name.replace("_", " ")
    if len(description) > _MOST_DESCRIPTION:
        raise ConfigurationError(
            f"the description of the tool {made.name!r} has {len(description):,} characters, more than {_MOST_DESCRIPTION:,}: "
            "every model reads all of it; say less, or give description=…"
        )
    tool = check_tool(
        ToolDescriptor(
            name=made.name,
            description=description,
            service=service,
            parameters=derived.parameters,
            groups=made.groups,
            category=made.category,
            timeout=made.timeout,
            effect=made.effect or effect,
            output_limit=made.output_limit,
            confirm=made.confirm,
            tenants=made.tenants,
        )
    )
    bind = derived.bind

    def start(request: Request) -> Any:
        return bound(**bind(request.arguments))

    def start_with_services(request: Request) -> Any:
        made_for_it = {name: services.get(type_) for name, type_ in given.items()}
        return bound(**bind(request.arguments), **spared, **made_for_it)

    isolated = made if made.isolation else None
    if isolated is not None:
        # Refused here, before anything starts.
        target_of(isolated)
        for type_ in filter(services.own, given.values()):
            message = f"{made.origin} runs in a child process, which has no {type_.__qualname__} of this worker's own"
            raise ConfigurationError(f"{message}: say toolbus.provide({type_.__qualname__}, …) at the top of a module")
    else:
        services.want(given.values())
    begin = start_with_services if derived.injected else start
    return tool, Handler(bound, begin, tool.effect, made.retry or retry, isolated, bind, made.tenants)


def _tell(tool: object, service: str, changes: list[str]) -> None:
    if changes:
        telemetry.log.warning("descriptor.mended", tool=tool, service=service, changes=changes)


def _add(tools: dict[str, ToolDescriptor], tool: ToolDescriptor) -> None:
    if tool.name in tools:
        raise ConfigurationError(f"service {tool.service!r} defines the tool {tool.name!r} twice")
    tools[tool.name] = tool


async def _await(value: Any) -> None:
    if asyncio.iscoroutine(value) or inspect.isawaitable(value):
        await value


def _module_summary(module: str) -> str:
    return inspect.cleandoc(getattr(sys.modules.get(module), "__doc__", None) or "").partition("\n")[0]


def owner_of(module: str, qualname: str) -> str:
    """Who may change what a module publishes: the distribution that holds it, else module and class.

    Never host, path or process: replicas on other machines must count as the same owner.
    """
    top = module.partition(".")[0]
    distributions = _distributions().get(top, [])
    if distributions:
        return min(distributions)
    name = service_name(module)
    return f"{name}:{qualname}" if qualname else name


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    # Reads every installed distribution: tens of milliseconds, so once per process.
    return importlib.metadata.packages_distributions()
