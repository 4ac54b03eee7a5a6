// A connection to Redis or Valkey, and the project's scripts: no packages needed.
import { readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

export const P = `tb:{${process.env.TOOLBUS_NAMESPACE ?? 'default'}}:`
const folder = process.env.TOOLBUS_SCRIPTS ?? 'scripts' // made by `toolbus protocol scripts DIR`

const refusals = /^(TRYAGAIN|ASK|LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|MOVED|NOREPLICAS|BUSY) /

// Return the reply that begins at a place, and where it ends; undefined while a part of it is missing.
function reply(data, at) {
  const end = data.indexOf('\r\n', at)
  if (end < 0) return
  const kind = data[at], line = data.toString('utf8', at + 1, end), size = Number(line)
  if (kind === 43 || kind === 58) return [line, end + 2] // + and :
  if (kind === 45) return [new Error(line), end + 2] // -
  if (size < 0) return [null, end + 2]
  if (kind === 36) return data.length < end + size + 4 ? undefined : [data.toString('utf8', end + 2, end + 2 + size), end + size + 4] // $
  const items = []
  for (at = end + 2; items.length < size; at = items.at(-1)[1]) { // *
    const item = reply(data, at)
    if (!item) return
    items.push(item)
  }
  return [items.map(item => item[0]), at]
}

export class Connection {
  waiting = []
  onmessage = () => {} // of a connection that has subscribed

  constructor(url = process.env.TOOLBUS_URL ?? 'redis://127.0.0.1:6379') {
    const { hostname, port } = new URL(url)
    let data = Buffer.alloc(0)
    this.socket = connect(Number(port || 6379), hostname).setNoDelay()
    this.socket.on('error', error => { console.error(`redis: ${error.message}`); process.exit(1) })
    this.socket.on('data', part => {
      data = Buffer.concat([data, part])
      for (let found; (found = reply(data, 0)); data = data.subarray(found[1])) {
        if (Array.isArray(found[0]) && found[0][0] === 'message') this.onmessage(found[0][2])
        else this.waiting.shift()(found[0])
      }
    })
  }

  async run(...words) {
    const bulk = words.map(String).map(word => `$${Buffer.byteLength(word)}\r\n${word}\r\n`)
    this.socket.write(`*${words.length}\r\n${bulk.join('')}`)
    const answer = await new Promise(resolve => this.waiting.push(resolve))
    if (answer instanceof Error) throw answer
    return answer
  }

  async script(name, keys, ...words) {
    const source = readFileSync(`${folder}/${name}.lua`, 'utf8')
    for (; ; await sleep(50)) {
      try {
        return await this.run('EVAL', source, keys.length, ...keys, ...words)
      } catch (error) {
        if (!refusals.test(error.message)) throw error // a refused command was not carried out
      }
    }
  }
}
