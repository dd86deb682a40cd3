// Products with matrices by WebAssembly, four numbers at a time: a third of the time of JavaScript.

import {dot, filled} from "./numbers.js";

const [GET, SET, LOOP, BRANCH_IF, END_OF, I32, F32_ADD, F32_STORE, VOID, V128, TYPE_I32] = [
  0x20, 0x21, 0x03, 0x0d, 0x0b, 0x41, 0x92, 0x38, 0x40, 0x7b, 0x7f,
];
const [ADD, MULTIPLY, LESS] = [0x6a, 0x6c, 0x49];
const LOAD = [0xfd, 0x00, 4, 0];
const SPLAT_ZERO = [0xfd, 0x0c, ...Array(16).fill(0)];
const [VECTOR_ADD, VECTOR_MULTIPLY] = [
  [0xfd, 0xe4, 0x01],
  [0xfd, 0xe6, 0x01],
];
const [ROWS, COLUMNS] = [4, 2];

/**
 * The bytes of a module whose `block(x, w, y, width, out)` gives y[r * out + c], the products of 4
 * rows of x and 2 of w, with all in bytes: x, w and y are addresses, width and out the sizes of
 * their rows.
 */
function moduleBytes() {
  const get = (local) => [GET, local];
  const set = (local, ...code) => [...code.flat(), SET, local];
  const size = (bytes) =>
    bytes.length < 128 ? [bytes.length] : [(bytes.length & 127) | 128, bytes.length >> 7];
  const vector = (items) => [items.length, ...items.flat()];
  const section = (id, content) => [id, ...size(content), ...content];
  const pointers = ROWS + COLUMNS;
  const end = 5 + pointers;
  const sums = end + 1;
  const loaded = sums + ROWS * COLUMNS;
  const pointer = (number, base, times) =>
    set(5 + number, get(base), get(3), [I32, times], [MULTIPLY], [ADD]);
  const each = (count, make) => filled(count, make).flat();
  const code = [
    ...each(ROWS, (r) => pointer(r, 0, r)),
    ...each(COLUMNS, (c) => pointer(ROWS + c, 1, c)),
    ...set(end, get(0), get(3), [ADD]),
    ...each(ROWS * COLUMNS, (at) => set(sums + at, SPLAT_ZERO)),
    LOOP,
    VOID,
    ...each(COLUMNS, (c) => set(loaded + c, get(5 + ROWS + c), LOAD)),
    ...each(ROWS, (r) => [
      ...set(loaded + COLUMNS, get(5 + r), LOAD),
      ...each(COLUMNS, (c) =>
        set(
          sums + r * COLUMNS + c,
          get(sums + r * COLUMNS + c),
          get(loaded + COLUMNS),
          get(loaded + c),
          VECTOR_MULTIPLY,
          VECTOR_ADD,
        ),
      ),
    ]),
    ...each(pointers, (at) => set(5 + at, get(5 + at), [I32, 16], [ADD])),
    ...get(5),
    ...get(end),
    LESS,
    BRANCH_IF,
    0,
    END_OF,
    ...each(ROWS * COLUMNS, (at) => [
      ...get(2),
      ...get(4),
      I32,
      Math.floor(at / COLUMNS),
      MULTIPLY,
      ADD,
      ...each(4, (lane) => [...get(sums + at), 0xfd, 0x1f, lane, ...(lane ? [F32_ADD] : [])]),
      F32_STORE,
      2,
      4 * (at % COLUMNS),
    ]),
    END_OF,
  ];
  const body = [2, pointers + 1, TYPE_I32, ROWS * COLUMNS + COLUMNS + 1, V128, ...code];
  const text = (name) => vector([...name].map((letter) => letter.charCodeAt(0)));
  return Uint8Array.from([
    0,
    0x61,
    0x73,
    0x6d,
    1,
    0,
    0,
    0,
    ...section(1, vector([[0x60, ...vector(Array(5).fill(TYPE_I32)), 0]])),
    ...section(2, vector([[...text("page"), ...text("memory"), 0x02, 0, 1]])),
    ...section(3, vector([0])),
    ...section(7, vector([[...text("block"), 0, 0]])),
    ...section(10, [1, ...size(body), ...body]),
  ]);
}

const SCRATCH = 1 << 21; // numbers for the rows of a product, and as many for its result

/**
 * Moves tensors into the memory of the module. Returns linear(x, weight, width) -> y, or null where
 * it cannot serve; null where the browser or the policy of an outer page has no WebAssembly, and
 * JavaScript computes the same.
 */
export function accelerated(tensors) {
  let total = 2 * SCRATCH;
  for (const one of Object.values(tensors)) total += (one.length + 3) & ~3;
  let memory, block;
  try {
    memory = new WebAssembly.Memory({initial: Math.ceil((4 * total + 64) / 65536)});
    ({block} = new WebAssembly.Instance(new WebAssembly.Module(moduleBytes()), {
      page: {memory},
    }).exports);
  } catch {
    return null;
  }
  const all = new Float32Array(memory.buffer);
  let at = 2 * SCRATCH;
  for (const [name, one] of Object.entries(tensors)) {
    all.set(one, at);
    tensors[name] = all.subarray(at, at + one.length);
    at += (one.length + 3) & ~3;
  }
  return (x, weight, width) => {
    const rows = x.length / width;
    const out = weight.length / width;
    const most = Math.max(...[width, out].map((one) => one * (rows + 3)));
    if (width % 4 || most > SCRATCH || weight.buffer !== memory.buffer) return null;
    const from = weight.byteOffset;
    const to = 4 * SCRATCH;
    const wide = 4 * width;
    const whole = out - (out % (rows === 1 ? ROWS : COLUMNS));
    all.set(x, 0);
    // A single row takes the part of the matrix: of each pair of results the second is overwritten
    // by the next block.
    if (rows === 1)
      for (let o = 0; o < whole; o += ROWS) block(from + o * wide, 0, to + 4 * o, wide, 4);
    else
      for (let row = 0; row < rows; row += ROWS)
        for (let o = 0; o < whole; o += COLUMNS)
          block(row * wide, from + o * wide, to + 4 * (row * out + o), wide, 4 * out);
    const y = all.slice(SCRATCH, SCRATCH + rows * out);
    for (let o = whole; o < out; o += 1)
      for (let row = 0; row < rows; row += 1)
        y[row * out + o] = dot(x, row * width, weight, o * width, width);
    return y;
  };
}
