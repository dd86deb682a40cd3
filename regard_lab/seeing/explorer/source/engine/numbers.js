// The arithmetic of a model: products with matrices, norms, activations, softmax. Arrays are
// float32, sums float64.

/** An array of `of(at)` for each place. */
export const filled = (length, of) => Array.from({length}, (_, at) => of(at));

/** A number within two others. */
export const clamped = (number, least, most) => Math.min(Math.max(number, least), most);

/** The place of a list of this length that is nearest to a value, which may be no number. */
export const placeIn = (value, length) =>
  clamped(Math.trunc(Number(value)) || 0, 0, Math.max(length - 1, 0));

/**
 * y = x W' + b for all rows of x. Blocks of 4 rows and 2 outputs read each number from memory the
 * fewest times.
 */
export function linear(x, weight, bias, width) {
  const rows = x.length / width;
  const out = weight.length / width;
  const y = new Float32Array(rows * out);
  const wide = rows - (rows % 4);
  const even = out - (out % 2);
  for (let row = 0; row < wide; row += 4)
    for (let o = 0; o < even; o += 2)
      block(x, row * width, weight, o * width, width, y, row * out + o, out);
  for (let row = 0; row < rows; row += 1)
    for (let o = row < wide ? even : 0; o < out; o += 1)
      y[row * out + o] = dot(x, row * width, weight, o * width, width);
  return biased(y, bias);
}

/** Add a vector to every row, in place. */
export function biased(y, bias) {
  if (bias)
    for (let from = 0; from < y.length; from += bias.length)
      for (let i = 0; i < bias.length; i += 1) y[from + i] += bias[i];
  return y;
}

function block(x, p, weight, u, width, y, to, out) {
  const q = p + width;
  const r = q + width;
  const s = r + width;
  const v = u + width;
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  let e = 0;
  let f = 0;
  let g = 0;
  let h = 0;
  for (let i = 0; i < width; i += 1) {
    const m = weight[u + i];
    const n = weight[v + i];
    const x0 = x[p + i];
    const x1 = x[q + i];
    const x2 = x[r + i];
    const x3 = x[s + i];
    a += x0 * m;
    b += x0 * n;
    c += x1 * m;
    d += x1 * n;
    e += x2 * m;
    f += x2 * n;
    g += x3 * m;
    h += x3 * n;
  }
  y[to] = a;
  y[to + 1] = b;
  y[to + out] = c;
  y[to + out + 1] = d;
  y[to + 2 * out] = e;
  y[to + 2 * out + 1] = f;
  y[to + 3 * out] = g;
  y[to + 3 * out + 1] = h;
}

export function dot(x, from, weight, at, width) {
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  let i = 0;
  for (; i + 3 < width; i += 4) {
    a += x[from + i] * weight[at + i];
    b += x[from + i + 1] * weight[at + i + 1];
    c += x[from + i + 2] * weight[at + i + 2];
    d += x[from + i + 3] * weight[at + i + 3];
  }
  for (; i < width; i += 1) a += x[from + i] * weight[at + i];
  return a + b + c + d;
}

/** y + x in the place of y; loops, because `map` of typed arrays takes five times as long. */
export function added(x, y) {
  for (let at = 0; at < x.length; at += 1) y[at] += x[at];
  return y;
}

/**
 * Rows divided by their size: by the deviation around their mean ("layer"), or by the root of their
 * mean square ("rms").
 */
export function normed(x, {weight, bias}, kind = "layer", epsilon = 1e-5) {
  const dim = weight.length;
  const y = new Float32Array(x.length);
  for (let from = 0; from < x.length; from += dim) {
    let [mean, square] = [0, 0];
    if (kind === "layer") for (let i = 0; i < dim; i += 1) mean += x[from + i] / dim;
    for (let i = 0; i < dim; i += 1) square += (x[from + i] - mean) ** 2 / dim;
    const by = 1 / Math.sqrt(square + epsilon);
    for (let i = 0; i < dim; i += 1)
      y[from + i] = (x[from + i] - mean) * by * weight[i] + (bias ? bias[i] : 0);
  }
  return y;
}

/** The error function by Abramowitz and Stegun 7.1.26; its error is at most 1.5e-7. */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const y =
    1 -
    ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) *
      t *
      Math.exp(-x * x);
  return x < 0 ? -y : y;
}
const gelu = (x) => 0.5 * x * (1 + erf(x / Math.SQRT2));
const silu = (x) => x / (1 + Math.exp(-x));
export const ACTIVATIONS = {
  relu: (x) => (x > 0 ? x : 0),
  gelu,
  silu,
  swiglu: silu,
  geglu: gelu,
  "gelu-tanh": (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};

export function softmax(logits) {
  const shares = new Float64Array(logits.length);
  let [most, sum] = [-Infinity, 0];
  for (const one of logits) if (one > most) most = one;
  for (let at = 0; at < shares.length; at += 1) sum += shares[at] = Math.exp(logits[at] - most);
  for (let at = 0; at < shares.length; at += 1) shares[at] /= sum;
  return shares;
}

/** The indices of the largest numbers, the largest first; only those that `counts` accepts. */
export function top(numbers, count, counts = () => true) {
  const best = [];
  for (let at = 0; at < numbers.length; at += 1) {
    if ((best.length === count && !(numbers[at] > numbers[best[count - 1]])) || !counts(at))
      continue;
    let place = best.length;
    while (place > 0 && numbers[at] > numbers[best[place - 1]]) place -= 1;
    best.splice(place, 0, at);
    if (best.length > count) best.pop();
  }
  return best;
}

/** ln of the sum of exp. */
export function logSumExp(numbers) {
  const most = Math.max(...numbers);
  return most + Math.log(numbers.reduce((sum, one) => sum + Math.exp(one - most), 0));
}

/** Vectors (positions, dim) that are added to embeddings: Vaswani et al. 2017, section 3.5. */
export function sinusoid(position, dim) {
  return Float32Array.from({length: dim}, (_, i) => {
    const angle = position * 10000 ** (-(i - (i & 1)) / dim);
    return i & 1 ? Math.cos(angle) : Math.sin(angle);
  });
}

/** ALiBi's slopes: Press et al. 2022, section 3. */
export function slopes(heads) {
  const below = 2 ** Math.floor(Math.log2(heads));
  const own = filled(below, (at) => 2 ** ((-8 * (at + 1)) / below));
  const between = filled(below, (at) => 2 ** ((-4 * (2 * at + 1)) / below));
  return [...own, ...between].slice(0, heads);
}

/**
 * The sum of weights over the sub-words of each key word, and their mean over those of each query
 * word.
 */
export function merged({shape: [layers, heads, rows, columns], weights}, queries, keys) {
  const out = new Float32Array(layers * heads * queries.length * keys.length);
  const column = new Int32Array(columns);
  keys.forEach(([, first, end], word) => column.fill(word, first, end));
  for (let head = 0; head < layers * heads; head += 1)
    queries.forEach(([, first, end], word) => {
      const to = (head * queries.length + word) * keys.length;
      for (let row = first; row < end; row += 1)
        for (let key = 0, at = (head * rows + row) * columns; key < columns; key += 1, at += 1)
          out[to + column[key]] += weights[at] / (end - first);
    });
  return {shape: [layers, heads, queries.length, keys.length], weights: out};
}

/** The cosine between two vectors. */
export function cosine(one, other) {
  const product = (a, b) => dot(a, 0, b, 0, a.length);
  return product(one, other) / Math.sqrt(product(one, one) * product(other, other)) || 0;
}
