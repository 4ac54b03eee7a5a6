// An agent at level 1 of docs/protocol.md. It reads a JSON object a line, {"call": "1", "service": …, "tool": …, "arguments": {…}, "timeout": 10}
// or {"cancel": "1"}, and writes {"call": "1", "text": …}, {"call": "1", "reset": true} and {"call": "1", "end": {"text", "error"}}.
import { randomUUID } from 'node:crypto'
import { createInterface } from 'node:readline'
import { Connection, P } from './resp.mjs'

const me = randomUUID(), replies = `${P}rsp:${me}`, ttl = 20_000
const [reading, writing] = [new Connection(), new Connection()]
const calls = new Map() // by correlation id
let flush = 0, last = '0-0'
const say = (call, what) => console.log(JSON.stringify({ call: call.name, ...what }))
const isAfter = (a, b) => !b || a.epoch > b.epoch || (a.epoch === b.epoch && a.attempt >= b.attempt)

function end(id, error, whole) {
  const call = calls.get(id)
  if (!call) return
  calls.delete(id)
  clearTimeout(call.timer)
  say(call, { end: { text: whole ?? call.text, error } })
}

async function cancel(id, error, call = calls.get(id)) {
  if (calls.has(id)) end(id, (call.error = error))
  if (call?.entry) await writing.script('publish/cancel', [`${P}q:${call.service}`, `${P}cancelled:${call.service}`], call.entry, id, 60_000, `${P}wake:${call.service}`, error.type)
}

async function publish({ call: name, service, tool, arguments: given = {}, timeout = 60 }) {
  const id = randomUUID(), call = { name, service, text: '', frames: new Map(), next: 0, banned: new Set() }
  calls.set(id, call)
  call.timer = setTimeout(() => cancel(id, { type: 'deadline_exceeded', message: 'the time was up' }), timeout * 1000)
  const request = JSON.stringify({ id, agent: me, service, tool, arguments: given, timeout })
  const verdict = await writing.script('publish/publish', [`${P}pub:${me}`, `${P}q:${service}`], flush++, 600_000, '', 2, 10_000, timeout * 1000, request)
  if (verdict === '-') end(id, { type: 'unavailable', message: `nobody serves ${service}` })
  else if (verdict[0] === '!') end(id, { type: 'overloaded', message: `${verdict.slice(1)} requests wait` })
  else call.entry = verdict
  if (call.error) await cancel(id, call.error, call) // it was cancelled before the answer came
}

function take(frame) {
  const call = calls.get(frame.id), place = { run: frame.run, epoch: frame.epoch ?? 0, attempt: frame.attempt ?? 1 }
  if (!call || call.banned.has(frame.run)) return
  if (frame.run !== call.run?.run) { // a new attempt: what came before is void, which a careful agent would compare first
    if (!isAfter(place, call.run)) return
    if (call.run) call.banned.add(call.run.run)
    if (call.text) say(call, { reset: true })
    Object.assign(call, { run: place, text: '', next: 0, frames: new Map() })
  }
  if ((frame.seq ?? 0) >= call.next) call.frames.set(frame.seq ?? 0, frame)
  for (let ready; (ready = call.frames.get(call.next)); call.next++) {
    call.frames.delete(call.next)
    if (ready.kind === 'reset') { call.text = ''; say(call, { reset: true }) }
    const text = ready.kind === 'end' ? '' : (ready.texts?.join('') ?? ready.response ?? '')
    if (text && (ready.kind ?? 'text') === 'text') { call.text += text; say(call, { text }) }
    if (ready.kind === 'output') call.whole = (call.whole ?? '') + ready.response
    if (ready.end_of_stream) return end(frame.id, ready.error ?? null, ready.response ?? call.whole)
  }
}

const listen = async () => { if (await writing.script('publish/listen', [replies], ttl, last) !== '0') last = '0-0' }
await listen()
setInterval(listen, ttl / 5)
createInterface({ input: process.stdin }).on('line', line => {
  const asked = JSON.parse(line)
  if (asked.call) publish(asked)
  else for (const [id, call] of calls) if (call.name === asked.cancel) cancel(id, { type: 'cancelled', message: 'cancelled by the caller' })
}).on('close', async () => { await writing.run('DEL', replies, `${P}pub:${me}`); process.exit(0) })
for (;;) {
  const found = await reading.run('XREAD', 'COUNT', 512, 'BLOCK', 2000, 'STREAMS', replies, last)
  for (const [entry, fields] of found?.[0]?.[1] ?? []) {
    last = entry
    try { if (fields[0] === 'f') JSON.parse(fields[1]).forEach(take) } catch (error) { console.error(`unreadable frames: ${error.message}`) }
  }
  if (found) await writing.run('XTRIM', replies, 'MINID', last.replace(/\d+$/, number => BigInt(number) + 1n))
}
