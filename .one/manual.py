import sys
sys.path.insert(0,"/tmp/one")
from combine import *
h=House(sys.argv[1])
PLAN="""
client.calls.assembly: buffer
client.calls.connection: waiting sessions inquiry
client.executor.executor: running state steps
client.executor.observers: observations
client.executor.toolcalls: parts order
client.tools.definitions: declared formats
client.tools.groups: grouped
client.tools.withholding: former review
client.tools.tool: names queues
worker.worker: transitions
worker.definition.service: options retry
worker.isolation.pool: failures
worker.isolation.messages: limits targets
worker.process.probes: probed_children probed_worker health
worker.process.autoscaler: scaling load load_reports
worker.process.event_loop: loop_watch
worker.process.report: worker_metrics
worker.process.lifeline: notify ending
worker.run.handling: middleware
worker.run.invocation: context
worker.run.stream: attachments keeping
worker.run.reasons: states
worker.serving.owner: life pace around
worker.sessions.state: session worker
worker.slots.lines: early waiting
worker.slots.taking: retries leaving
broker.opening: not_open failing probe
broker.memory.documents=memory.creations memory.conversations memory.confirmations memory.routes memory.tallies memory.results memory.chats memory.tokens
broker.protocols.worker: delivery
broker.protocols.agent: publish sharing tallies confirmations
broker.protocols.documents=protocols.creations protocols.routes protocols.conversations protocols.tasks protocols.chats protocols.tokens protocols.results protocols.registry
broker.registry.follower: pieces
broker.registry.publications: registration refusals moving
broker.transport.wire: command replies
broker.transport.mastership: replication
broker.transport.discovery: sentinels ask_nodes
broker.transport.connection: tls passwords clients
broker.transport.links: short_link redirect
broker.transport.transport: bounded server
gateway.bodies: headers media_types problems
gateway.guards: hosts disconnects
gateway.streaming: sse
gateway.measures: metrics probed
gateway.openapi_paths: openapi
gateway.permissions: principals
gateway.serving: http_protocol
gateway.options: supplied
gateway.tool_calls: turn_requests
gateway.auth.web_tokens: claims key_set
gateway.auth.credentials: records_file
gateway.page.rows: reading
mcp.http: stdio
mcp.content: questions
mcp.server: caller client
mcp.listing: changes subscriptions
mounts.answers: sifting
mounts.options: naming codes pinning objects
mounts.provider: described targets
mounts.mount: listing serving
mounts.stdio: stderr
mounts.openapi.operations: schemas
mounts.openapi.requests: web reading
backends.marks: ports
backends.http.answers: requests sending
host.leases: runners
host.pool.pool: starts starting
host.pool.member: losses timing
platform.documents: digests written lockfiles
platform.checks: source_checks urls values
platform.states: status spending
platform.search: described
platform.catalogue.synchronise: items
coding.workspace.workspace: limits
coding.guard: puller
coding.copies: forms
coding.spending: job
assistant.turns: catalogue
im.frames: answering
im.window: windows
agent.records: memory messages configured
agent.exchange: endpoint
toolkit.starting: entries lexical
toolkit.layout: lettering
toolkit.walk: chain routes
toolkit.recommend: scoring exploring
toolkit.presets: shipped checks
toolkit.publishing: page
toolkit.source: sets
toolkit.learning.stores: jsonl sqlite files
toolkit.learning.evidence: records matching
toolkit.learning.judge: policies parameters
toolkit.learning.scores: ranking
toolkit.learning.learn: pipeline report
schema.casting: corrections
schema.documents: sizes bounds
schema.derivation: signature
schema.repair: scanner
schema.validate: contradictions
telemetry.output: lines
telemetry.metrics: exposition
telemetry.logger: listening
watch.assembly: counts activity
conformance.checks: tools
conformance.program: running
conformance.scene: agent_scene
testing.environment: sessions outcome
sync.loop: call
sync.views: tools tallies observers executor confirmations
adapters.home: outcomes places
middleware.limits: metering timeout
middleware.cache: invalidation
"""
for line in PLAN.strip().splitlines():
    if "=" in line:
        t,ms=line.split("="); target="toolbus."+t; pre=t.rpartition(".")[0].rpartition(".")[0]
        members=[f"toolbus.{pre}.{m}" for m in ms.split()]
    else:
        t,ms=line.split(": "); target="toolbus."+t; pkg=target.rpartition(".")[0]
        members=[target]+[f"{pkg}.{m}" for m in ms.split()]
    doc=None
    if "=" in line: doc={"toolbus.broker.memory.documents":"What is kept for features, in ``memory://``: tasks' records, conversations, confirmations, routes, tallies, results, chats, tokens.","toolbus.broker.protocols.documents":"What features keep on the server, and the steps on it: items, tasks, conversations, chats, routes, tokens, results."}[target]
    try: combine(h,members,target,doc=doc)
    except Abort as e:
        print("ABORT",target,e)
        if "=" in line: continue
        for m in members[1:]:
            try: combine(h,[target,m],target)
            except Abort as e: print("  ABORT",m,str(e)[:160])
