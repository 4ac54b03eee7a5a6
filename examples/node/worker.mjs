// A worker at level 1 of docs/protocol.md: toolbus protocol scripts lua; TOOLBUS_SCRIPTS=lua node worker.mjs
import { createHash, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Connection, P } from './resp.mjs'

const service = process.env.TOOLBUS_SERVICE ?? 'node', me = randomUUID(), lease = 1000 * (process.env.TOOLBUS_LEASE ?? 30), slots = 100, ttl = 2_592_000_000
const text = { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] }
const count = { type: 'object', properties: { to: { type: 'integer' }, delay: { type: 'number' } }, required: ['to'] }
const tools = {
  [`${service}-echo`]: { description: 'Return a text.', parameters: text, async *run({ text }) { yield text } },
  [`${service}-count`]: {
    description: 'Count, one number each `delay` seconds.', parameters: count,
    async *run({ to, delay = 0.1 }, signal) { for (let i = 1; i <= to; i++) { yield `${i} `; await sleep(delay * 1000, null, { signal }) } },
  },
}
const described = Object.entries(tools).map(([name, { description, parameters }]) => ({ name, description, parameters, service, effect: 'read' }))
const digest = createHash('sha1').update(JSON.stringify(described)).digest('hex')
const publication = JSON.stringify({ service: { id: service }, tools: described, owner: 'node', digest })
const queue = `${P}q:${service}`, fence = `${P}fence:${service}`, live = `${P}live`, cancelled = `${P}cancelled:${service}`
const registry = ['reg:services', 'reg:names', 'reg:meta', 'reg:items', 'live', 'log', `reg:s:${service}`, `q:${service}`, `fence:${service}`, `cancelled:${service}`].map(key => P + key)
const [taking, writing, hearing] = [new Connection(), new Connection(), new Connection()]
const running = new Map() // call id → { entry, to, controller }
const over = new Map() // calls that were cancelled before this process heard of them: id → the error that their caller has
let start = 0, generation, counter, draining = false, freed = () => {}

async function register() {
  const names = described.map(tool => tool.name)
  const run = others => writing.script('registry/register', [...registry, ...others], P, randomUUID(), ttl, 60_000, service, me, 'node', digest, publication, lease, randomUUID(), '', service, start, ...names)
  let answer = await run([])
  const held = answer[0] === 'ok' ? [] : await writing.run('HMGET', `${P}reg:names`, `s:${service}`, `q:${service}`, ...names.map(name => `t:${name}`))
  if (held.length) answer = await run(held.filter(Boolean).map(row => `${P}reg:s:${row.split('\n')[1]}`)) // of services that may not exist any more
  if (answer[0] !== 'ok') throw new Error(`these names belong to others: ${answer.slice(1)}`)
  ;[, start, generation, counter] = answer
}

const pieces = text => { // of at most 65,536 bytes, cut between characters
  const found = []
  for (let at = 0, end; at < text.length; at = end) {
    end = Math.min(text.length, at + 16_000)
    if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end--
    found.push(text.slice(at, end))
  }
  return found
}

const isName = text => typeof text === 'string' && /^[\w-]{1,64}$/.test(text)
const readable = document => { // or undefined; without an id and an agent nobody can be answered
  try {
    const found = JSON.parse(document)
    if (isName(found?.id) && isName(found.agent)) return found
  } catch {}
}

async function answer(entry, request, deadline) {
  const controller = new AbortController(), run = randomUUID(), began = Date.now()
  let seq = 0, error = null
  const to = request.shared ? `${P}call:${request.id}` : `${P}rsp:${request.agent}`
  const frame = rest => JSON.stringify([{ id: request.id, run, attempt: 1, epoch: parseInt(generation), seq, worker: me, queued_ms: seq++ ? 0 : Math.max(0, began - parseInt(entry)), ...rest }])
  running.set(request.id, { entry, to, controller })
  const timer = setTimeout(() => controller.abort('deadline_exceeded'), Math.min(deadline - Date.now(), 86_400_000))
  try {
    const tool = request.service === service && tools[request.tool]
    if ((request.v ?? 1) !== 1) error = { type: 'invalid_arguments', message: `this worker speaks version 1, not ${request.v}` }
    else if (!tool) error = { type: 'not_found', message: `there is no tool ${request.tool}` }
    else if (over.has(request.id)) error = { type: over.get(request.id), message: 'cancelled before it began' }
    else if (deadline <= Date.now()) error = { type: 'deadline_exceeded', message: 'the deadline had passed', retryable: true }
    else if (request.events) await writing.script('finish/send', [live], to, frame({ kind: 'start' }))
    if (!error) for await (const part of tool.run(request.arguments ?? {}, controller.signal)) for (const piece of pieces(part)) {
      controller.signal.throwIfAborted()
      const gone = (await writing.script('finish/send', [live], to, frame({ response: piece }))).length > 0
      if (gone) for (const call of running.values()) if (call.to === to) call.controller.abort('cancelled')
    }
  } catch (reason) {
    const why = controller.signal.reason
    error = controller.signal.aborted ? { type: why, message: 'stopped', retryable: why === 'deadline_exceeded' } : { type: 'tool_error', message: String(reason) }
  }
  clearTimeout(timer)
  running.delete(request.id)
  const last = frame({ kind: 'end', end_of_stream: true, error })
  const found = await writing.script('finish/finish', [queue, fence], me, generation, counter, 1, entry, to, last)
  // Something was moved away from this worker: each call is looked at, and the frames of lost ones are dropped.
  if (found.length === 2) [generation, counter] = await writing.script('finish/finish_each', [queue, fence], me, generation, counter, 1, entry, 1, to, 1, 1, last.slice(1, -1))
  freed()
}

async function keep() { // beat and renew three times a lease
  for (; ; await sleep(lease / 3)) {
    const [, missing] = await writing.script('lease/beat', [live, `${P}reg:paused`, `${P}pulse`, queue, fence], lease, ttl, `${service}/${me}`)
    if (missing.length && !draining) await register()
    const held = [...running.values()].flatMap(call => [call.entry, 1])
    if (held.length) await writing.script('lease/renew', [queue, fence], me, generation, counter, ...held)
  }
}

process.on('SIGTERM', async () => {
  draining = true
  await writing.script('registry/unregister', registry, P, randomUUID(), ttl, 60_000, `${service}/${me}`)
  while (running.size) await sleep(10)
  await writing.script('recover/retire', [queue, fence, cancelled, `${P}reg:s:${service}`, live], me, service)
  process.exit(0)
})

let named = [] // of the call that is cancelled next: its id, and the error that its caller has
hearing.onmessage = text => {
  const [word, id, type] = text.split(' ')
  if (word === 'over') named = [id, type]
  if (word !== 'cancel') return
  const why = named[0] === id ? named[1] : 'cancelled'
  running.get(id)?.controller.abort(why)
  over.set(id, why) // its entry may be on its way
  if (over.size > 10_000) over.delete(over.keys().next().value)
}
await hearing.run('SUBSCRIBE', `${P}wake:${service}`)
await register()
for (const id of await writing.run('ZRANGE', cancelled, 0, -1)) over.set(id, 'cancelled')
keep()
while (!draining) {
  if (running.size >= slots) await new Promise(resolve => { freed = resolve })
  const found = await taking.run('XREADGROUP', 'GROUP', 'g', me, 'COUNT', slots - running.size, 'BLOCK', 2000, 'STREAMS', queue, '>').catch(() => draining || register())
  for (const [entry, fields] of found?.[0]?.[1] ?? []) {
    const request = readable(fields[fields.indexOf('r') + 1])
    if (request) answer(entry, request, Number(fields[fields.indexOf('d') + 1]))
    else await writing.script('finish/finish', [queue, fence], me, generation, counter, 1, entry)
  }
}
