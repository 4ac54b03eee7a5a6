// Checks the vectors from docs/protocol.md alone: node vectors.mjs vectors.json. It writes {"checked": NUMBER, "wrong": [NAME, …]}.
import { readFileSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import { canonical, digest } from '../../examples/node/digests.mjs'

const vectors = JSON.parse(readFileSync(process.argv[2], 'utf-8'))
let checked = 0
const wrong = []
const check = (name, found, expected) => { checked++; if (!isDeepStrictEqual(found, expected)) wrong.push(`${name}: ${JSON.stringify(found)}, not ${JSON.stringify(expected)}`) }

for (const each of vectors.canonical) {
  const value = JSON.parse(each.json)
  check(each.json, [canonical(value), digest(value), digest(value, 32)], [each.canonical, each.digest, each.digest_of_32_bytes])
}

for (const { request, ...expected } of vectors.work) {
  const { service, tool, config = {}, arguments: given, user = '', session = '', idempotency_key } = request
  const action = asker => digest([asker, service, tool, user, session, asker === 'agent' ? '' : 'May it?', given], 32)
  const found = { record: digest([user, idempotency_key]), work: digest([service, tool, config, given, session]), confirmed: action('agent') }
  check('work', { ...found, 'asked by the worker': action('worker') }, expected)
}

for (const { tool: { timeout, output_limit, ...rest }, canonical } of vectors.pins) check('pin', digest(rest, 32), canonical)

const NAMES = {
  'requests': key => `q:${key.queue}`,
  'replies': key => `rsp:${key.agent}`,
  'replies of a shared call': key => `call:${key.call}`,
  'record of an idempotency key': key => `key:${digest([key.user, key.idempotency_key])}`,
  'mark of once work': key => `started:${key.call}`,
  'owner of a session': key => `sess:${key.queue}:${digest([key.user, key.session])}`,
  'snapshot of a session': key => `snap:${key.queue}:${digest([key.user, key.session])}`,
  'results of a session': key => `results:${digest([key.user, key.session])}`,
}
for (const key of vectors.keys) check(key.of, `tb:{${key.namespace}}:${NAMES[key.of](key)}`, key.key)

/** Return what a caller sees of the entries of one call; one that is null stands for the end of the wait for a missing frame. */
function eventsOf(entries) {
  const events = [], banned = new Set(), isText = value => typeof value === 'string' || value === null || value === undefined
  let run, place = [0, 0], next, held, delivered = '', blobs = [], own, ended = false
  const tell = event => { if ('text' in event && events.at(-1)?.text !== undefined) events.at(-1).text += event.text; else events.push(event) }
  const give = text => { if (text) { delivered += text; tell({ text }) } }
  const reset = () => { events.push({ reset: place[1] }); delivered = ''; blobs = [] }
  const finish = (output, data, error) => {
    ended = true
    events.push({ end: { output: output ?? null, data: data ?? null, attempts: place[1], ...(error && { error: { type: error.type, code: error.code ?? '' } }) } })
  }
  const diverge = () => { const kept = own.blobs; own.again = false; reset(); give(own.text); for (const blob of kept) { blobs.push(blob); tell({ blob }) } }
  const say = text => {
    own.said = true
    own.text += text
    if (!own.again) return give(text)
    if (own.text.startsWith(delivered)) { own.again = false; give(own.text.slice(delivered.length)) } else if (!delivered.startsWith(own.text)) diverge()
  }

  function take(frame) {
    const kind = frame.kind ?? 'text'
    if (kind === 'text') for (const text of frame.texts ?? [frame.response ?? '']) say(text)
    if (kind === 'progress' && !own.again) tell({ progress: frame.progress })
    if (kind === 'output' || kind === 'data') own[kind] = (own[kind] ?? '') + (frame.response ?? '')
    if (kind === 'reset') { Object.assign(own, { again: false, text: '', blobs: [], said: false }); reset() }
    if (kind === 'confirm') tell(frame.confirm.timeout > 0 ? { asked: frame.confirm.question } : { answered: frame.confirm.allowed ?? null })
    if (kind === 'blob') {
      own.part = Buffer.concat([own.part, Buffer.from(frame.blob.data, 'base64')])
      if (!frame.more) {
        const blob = { media_type: frame.blob.media_type, data: own.part.toString('base64') }, known = blobs[own.blobs.length]
        own.part = Buffer.alloc(0)
        if (known && !isDeepStrictEqual(known, blob)) diverge()
        own.blobs.push(blob)
        if (own.blobs.length > blobs.length) { blobs.push(blob); tell({ blob }) }
      }
    }
    if (!frame.end_of_stream) return
    let { error, data, response: output } = frame
    output = own.output ?? output
    if (own.data !== undefined) try { data = JSON.parse(own.data) } catch { error ??= { type: 'tool_error', code: 'bad_data' } }
    if (!output && !own.said && data !== undefined && data !== null && !error) output = own.data ?? JSON.stringify(data)
    if (output !== undefined && output !== null && !own.said) { say(output); output = undefined }
    if (((own.again && delivered) || own.blobs.length < blobs.length) && !frame.error) diverge()
    output ??= delivered
    finish(error ? output || null : output, data, error)
  }

  function feed(frame) {
    if (ended || banned.has(frame.run)) return
    const where = [frame.epoch ?? 0, frame.attempt ?? 1], seq = frame.seq ?? 0
    if (frame.run !== run) {
      if (where[0] < place[0] || (where[0] === place[0] && where[1] < place[1])) return
      if (run) banned.add(run)
      run = frame.run; place = where; next = 0; held = new Map()
      own = { again: Boolean(delivered || blobs.length), text: '', blobs: [], said: false, part: Buffer.alloc(0) }
    }
    if (seq < next || held.has(seq)) return
    held.set(seq, frame)
    if (frame.end_of_stream && frame.error?.code === 'frames_refused') { next = seq }
    for (let ready; !ended && (ready = held.get(next)); ) { held.delete(next++); take(ready) }
  }

  for (const entry of entries) {
    if (entry === null) { finish(delivered || null, null, { type: 'outcome_unknown', code: 'frames_missing' }); continue }
    for (const frame of typeof entry === 'string' ? JSON.parse(entry) : entry) {
      const isRead = isText(frame.response) && (frame.error === undefined || frame.error === null || typeof frame.error === 'object')
      if (isRead) feed(frame)
      else if (frame.end_of_stream) feed({ ...frame, response: null, error: { type: 'outcome_unknown', code: 'malformed_frame' } })
    }
  }
  return events
}
for (const { name, entries, events } of vectors.frames) check(name, eventsOf(entries), events)

function pieces(text, bytes) {
  const found = ['']
  for (const character of text) {
    if (Buffer.byteLength(found.at(-1) + character) > bytes) found.push('')
    found[found.length - 1] += character
  }
  return found
}
for (const { text, bytes, pieces: expected } of vectors.cuts) check(`pieces of ${text}`, pieces(text, bytes), expected)

for (const { entry, note, now, deadline } of vectors.deadlines) {
  const [later, since, until] = note.split(' ').map(Number)
  check(`deadline ${note} at ${now}`, Math.max(entry, later + Math.max(0, Math.min(now, until) - since)), deadline)
}

const verdict = word => word === '-' ? ['absent', '', 0] : word[0] === '!' ? ['full', '', Number(word.slice(1))] : ['queued', word, 0]
for (const { answer, verdicts } of vectors.verdicts) check(answer, answer.split(' ').map(verdict), verdicts.map(each => [each.status, each.entry, each.depth]))

console.log(JSON.stringify({ checked, wrong }))
