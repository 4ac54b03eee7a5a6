// Digests of docs/protocol.md: BLAKE2b (RFC 7693), which node:crypto has with 64 bytes alone, over canonical JSON (RFC 8785).

/** Return a value as canonical JSON: JSON.stringify writes its numbers and texts, and sort() compares UTF-16 code units. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (value === null || typeof value !== 'object') return JSON.stringify(value)
  return `{${Object.keys(value).sort().map(key => `${JSON.stringify(key)}:${canonical(value[key])}`).join(',')}}`
}

/** Return the digest of a value, in hexadecimal; size is in bytes. */
export const digest = (value, size = 16) => blake2b(Buffer.from(canonical(value)), size).toString('hex')

const IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
]
const SIGMA = [
  '0123456789abcdef', 'ea489fd61c02b753', 'b8c052fdae367194', '7931dcbe265a40f8', '905724afe1bc683d',
  '2c6a0b834d75fe19', 'c51fed4a0763928b', 'db7ec13950f4862a', '6fe9b308c2d714a5', 'a2847615fb9e3cd0',
].map(row => [...row].map(digit => parseInt(digit, 16)))
const COLUMNS = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]]
const word = number => BigInt.asUintN(64, number)
const rotated = (number, by) => word((number >> by) | (number << (64n - by)))

/** Return the BLAKE2b digest of bytes, without a key. */
export function blake2b(data, size) {
  const state = IV.slice()
  state[0] ^= 0x01010000n ^ BigInt(size)
  const blocks = Math.max(1, Math.ceil(data.length / 128))
  for (let block = 0; block < blocks; block++) {
    const bytes = Buffer.alloc(128), done = Math.min(data.length, 128 * (block + 1))
    data.copy(bytes, 0, 128 * block, done)
    const part = Array.from({ length: 16 }, (_, at) => bytes.readBigUInt64LE(8 * at))
    const v = [...state, ...IV]
    v[12] ^= BigInt(done)
    if (block === blocks - 1) v[14] = word(~v[14])
    for (let round = 0; round < 12; round++) {
      COLUMNS.forEach(([a, b, c, d], at) => {
        for (const [x, first, second] of [[2 * at, 32n, 24n], [2 * at + 1, 16n, 63n]]) {
          v[a] = word(v[a] + v[b] + part[SIGMA[round % 10][x]])
          v[d] = rotated(v[d] ^ v[a], first)
          v[c] = word(v[c] + v[d])
          v[b] = rotated(v[b] ^ v[c], second)
        }
      })
    }
    for (let at = 0; at < 8; at++) state[at] ^= v[at] ^ v[at + 8]
  }
  const made = Buffer.alloc(64)
  state.forEach((each, at) => made.writeBigUInt64LE(each, 8 * at))
  return made.subarray(0, size)
}
