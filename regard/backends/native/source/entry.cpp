// The C entry: chooses the kernel for this processor, and checks everything that a kernel relies on before it runs.
// This file is compiled without vector instructions.
#include "processor.h"
#include "programs.h"
#include "threads.h"
#include "visible.h"

#include <pthread.h>
#include <stdlib.h>

#include <cstddef>

// The pool of threads of the OpenMP library that PyTorch has loaded: GNU's own entry, which LLVM's and Intel's libraries
// have too. It is called by name, so that any compiler serves and no OpenMP library is linked or loaded twice.
extern "C" void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

namespace {
int chosen = -1;
// The same function where its name is not visible: PyTorch's wheels for Arm and macOS load OpenMP for themselves alone, and
// Zig's linker for macOS looks for a weak name in this library and the system only.
decltype(&GOMP_parallel) given_parallel = nullptr;
}  // namespace

int instructions() {
  const int found = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
  if (found >= 0) return found;
  const int most = supported();
  __atomic_store_n(&chosen, most, __ATOMIC_RELAXED);
  return most;
}

namespace {
// In a forked process the threads of OpenMP's pool do not exist, and waiting for them would never end.
bool forked = false;
__attribute__((constructor)) void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

#if defined(RG_OWN_THREADS)  // for the sanitizer of threads, which knows those of the system alone
constexpr bool HAS_THREADS = true;
struct Work {
  void (*work)(void *);
  void *data;
};
void run_in_threads(int threads, void (*work)(void *), void *data) {
  Work one{work, data};
  pthread_t others[64];
  int started = 0;
  const auto run = [](void *p) -> void * { return ((Work *)p)->work(((Work *)p)->data), nullptr; };
  while (started < threads - 1 && started < 64 && !pthread_create(&others[started], nullptr, run, &one)) started++;
  work(data);
  for (int i = 0; i < started; i++) pthread_join(others[i], nullptr);
}
#else
decltype(&GOMP_parallel) parallel() {
  const auto given = __atomic_load_n(&given_parallel, __ATOMIC_RELAXED);
  return given ? given : GOMP_parallel;
}
#define HAS_THREADS (parallel() != nullptr)
void run_in_threads(int threads, void (*work)(void *), void *data) { parallel()(work, data, (unsigned)threads, 0); }
#endif

// Where q, k and v are bfloat16, they are multiplied as they are, unless weights must stay float32.
bool multiplies_halves(const rg_call &c) {
  return c.q.type == RG_BFLOAT16 && c.k.type == RG_BFLOAT16 && c.v.type == RG_BFLOAT16 && !c.precise;
}

// The same of a recurrence, but for single steps, in which products of the memory alone take time, and for decays of channels,
// which keys are multiplied by before they meet.
bool multiplies_halves(const rg_recurrence &c) {
  return c.q.type == RG_BFLOAT16 && c.k.type == RG_BFLOAT16 && c.out.type == RG_BFLOAT16 && c.length > 1 && c.decays < 2;
}

#define KERNEL_FOR(c, function)                                \
  ((c).q.type == RG_FLOAT64 ? wide::function                   \
   : multiplies_halves(c)   ? BFLOAT16_KERNEL(function)        \
                            : FLOAT32_KERNEL(function))

rg_call alone(const rg_call &c) {
  rg_call own = c;
  if (forked) own.threads = 1;
  return own;
}

// ---- checks

bool within(int64_t first, int64_t count, int64_t size) { return first >= 0 && count >= 0 && first <= size - count; }

bool fits(const rg_tensor &x, int64_t batch, int64_t heads, int64_t rows, int64_t dim, int types) {
  if (!x.data || x.type < 0 || x.type > RG_FLOAT64 || !(types >> x.type & 1)) return false;
  const int64_t most = INT64_C(1) << 40;
  int64_t last = dim;
  const int64_t strides[] = {x.batch, x.head, x.row}, sizes[] = {batch, heads, rows};
  for (int i = 0; i < 3; i++) {
    if (strides[i] < 0 || strides[i] > most || sizes[i] < 1) return false;
    last += strides[i] * (sizes[i] - 1);  // sizes are int32, so 3 * 2^40 * 2^31 does not overflow where size allows it
    if (last > x.size || last < 0) return false;
  }
  return true;
}

bool fits(const rg_bias &x, const rg_call &c) {
  if (!x.at || x.size < 1 || (x.key != 0 && x.key != 1) || x.head < 0 || x.row < -1) return false;
  const int64_t most = INT64_C(1) << 40;
  if (x.head > most || x.row > most) return false;
  const int64_t rows = x.row * (c.q_len - 1), last = x.key * (c.keys - 1) + x.head * (c.heads - 1);
  for (int b = 0; b < c.batch; b++)
    if (x.at[b] < 0 || x.at[b] > x.size || x.at[b] + (rows < 0 ? rows : 0) < 0 || x.at[b] + last + (rows > 0 ? rows : 0) >= x.size)
      return false;
  return true;
}

int check_runs(const rg_schedule &s, const int32_t *block, int64_t first_key, int64_t end_key) {
  const int64_t rows = (int64_t)block[1] - block[0];
  int64_t before = first_key;
  for (int r = block[2]; r < block[3]; r++) {
    const int32_t *run = s.run + 4L * r;
    const int64_t first = run[0], end = run[1], place = run[3];
    if (first < before || end <= first || end > end_key) return RG_BAD_RUNS;
    before = end;
    if (run[2] == RG_BOUNDED) {
      if (!s.lo || !s.hi || !within(place, rows, s.bounds)) return RG_BAD_PLACES;
    } else if (run[2] == RG_BITS) {
      if (!s.bits || !within(place, rows * ((end - first + 31) / 32), s.words)) return RG_BAD_PLACES;
    } else if (run[2] != RG_WHOLE) {
      return RG_BAD_RUNS;
    }
  }
  return RG_OK;
}

int check_schedule(const rg_schedule &s, const rg_call &c) {
  if (s.blocks < 1 || s.runs < 0 || s.bounds < 0 || s.words < 0 || !s.block || (s.runs && !s.run)) return RG_BAD_BLOCKS;
  int32_t row = 0;
  for (int b = 0; b < s.blocks; b++) {
    const int32_t *block = s.block + 4L * b;
    if (block[0] != row || block[1] <= row || (int64_t)block[1] - row > RG_MOST_ROWS) return RG_BAD_BLOCKS;
    if (block[2] < 0 || block[3] < block[2] || block[3] > s.runs) return RG_BAD_BLOCKS;
    row = block[1];
    if (int wrong = check_runs(s, block, c.first_key, (int64_t)c.first_key + c.keys)) return wrong;
  }
  return row == c.q_len ? RG_OK : RG_BAD_BLOCKS;
}

int check_lists(const rg_lists &l, const rg_call &c) {
  if (!l.block || !l.lo || !l.hi || l.count < 1 || l.rows < 1 || l.keys < 1 || l.batch < 0 || l.list < 0) return RG_BAD_BLOCKS;
  if ((l.batches != 1 && l.batches != c.batch) || (l.bounds != 1 && l.bounds != c.batch)) return RG_BAD_BLOCKS;
  if (l.lists < 1 || c.heads % l.lists || (int64_t)l.count * l.keys > INT64_C(1) << 40) return RG_BAD_BLOCKS;
  const int64_t rows = ((int64_t)c.q_len + l.rows - 1) / l.rows, most = INT64_C(1) << 40;
  if (l.batch > most || l.list > most || l.rows > INT32_MAX - RG_SPAN || l.keys > INT32_MAX - RG_SPAN) return RG_BAD_BLOCKS;
  if (l.batch * (l.batches - 1) + l.list * (l.lists - 1) + rows * l.count > l.size) return RG_BAD_BLOCKS;
  const bool plain = !c.softcap && !c.bias.data && !c.dropout && !c.statistics;
  return plain && c.k.type == c.q.type && c.v.type == c.q.type && (c.q.type == RG_FLOAT32 || c.q.type == RG_FLOAT64) ? RG_OK : RG_BAD_OPTIONS;
}

int check_windows(const rg_windows &x, const rg_call &c) {
  if (!x.first || !x.cell || x.windows < 1 || x.windows > c.q_len || x.first[0] != 0) return RG_BAD_BLOCKS;
  for (int32_t w = 0; w < x.windows; w++)
    if (x.first[w + 1] <= x.first[w] || x.first[w + 1] > c.q_len) return RG_BAD_BLOCKS;
  if (x.first[x.windows] != c.q_len) return RG_BAD_BLOCKS;
  for (int32_t i = 0; i < c.q_len; i++)
    if (x.cell[i] < 0 || x.cell[i] >= c.q_len) return RG_BAD_BLOCKS;
  const bool by_distance = !c.bias.data || (c.bias.row == -1 && c.bias.key == 1);
  const bool plain = !c.lists && !c.dropout && !c.statistics && c.k.type != RG_INT8 && c.v.type != RG_INT8;
  return plain && by_distance && c.first_key == 0 && c.keys == c.q_len ? RG_OK : RG_BAD_OPTIONS;
}

// The types of queries and outputs: float64 alone, or any of the others.
int float_types(const rg_call &c) {
  return c.q.type == RG_FLOAT64 ? 1 << RG_FLOAT64 : 1 << RG_FLOAT32 | 1 << RG_BFLOAT16 | 1 << RG_FLOAT16;
}

bool within_slots(const int32_t *slot, int32_t count, int32_t slots) {
  if (!slot || slots < 1) return false;
  for (int32_t i = 0; i < count; i++)
    if (slot[i] < -1 || slot[i] >= slots) return false;
  return true;
}

bool fits(const rg_statistics &x, const rg_call &c) {
  if (x.distance && !c.start) return false;
  if ((x.received || x.weights) && !c.log_sum_exp) return false;
  if (x.top < 0 || x.top > RG_MOST_TOP || (x.top && (!x.top_weights || !x.top_keys))) return false;
  return !x.weights || (within_slots(x.head_slot, c.heads, x.weight_heads) && within_slots(x.row_slot, c.q_len, x.weight_rows));
}

int check(const rg_call *call) {
  if (!call) return RG_BAD_OPTIONS;
  const rg_call &c = *call;
  if (instructions() == NONE) return RG_NO_KERNEL;
  const int32_t sizes[] = {c.batch, c.heads, c.kv_heads, c.q_len, c.head_dim, c.v_dim, c.keys};
  for (int32_t size : sizes)
    if (size < 1) return RG_BAD_SIZES;
  if (c.heads % c.kv_heads || c.first_key < 0 || (int64_t)c.first_key + c.keys > INT32_MAX - RG_SPAN) return RG_BAD_SIZES;
  if (c.head_dim > 1 << 16 || c.v_dim > 1 << 16) return RG_BAD_SIZES;
  if (c.threads < 1) return RG_BAD_OPTIONS;
  if (c.windows) {
    if (int wrong = check_windows(*c.windows, c)) return wrong;
  } else if (c.lists) {
    if (int wrong = check_lists(*c.lists, c)) return wrong;
  } else if (c.schedules < 1 || !c.schedule) {
    return RG_BAD_OPTIONS;
  }
  const bool by_schedule = !c.lists && !c.windows;
  for (int s = 0; s < c.schedules && by_schedule; s++)
    if (int wrong = check_schedule(c.schedule[s], c)) return wrong;
  if (c.schedule_of && by_schedule)
    for (int64_t i = 0; i < (int64_t)c.batch * c.heads; i++)
      if (c.schedule_of[i] < 0 || c.schedule_of[i] >= c.schedules) return RG_BAD_OPTIONS;
  const int floats = float_types(c), any = 1 << RG_FLOAT32 | 1 << RG_BFLOAT16 | 1 << RG_FLOAT16 | 1 << RG_INT8 | floats;
  if (!fits(c.q, c.batch, c.heads, c.q_len, c.head_dim, floats)) return RG_BAD_TENSOR;
  if (!fits(c.k, c.batch, c.kv_heads, c.keys, c.head_dim, any)) return RG_BAD_TENSOR;
  if (!fits(c.v, c.batch, c.kv_heads, c.keys, c.v_dim, any)) return RG_BAD_TENSOR;
  if (!fits(c.out, c.batch, c.heads, c.q_len, c.v_dim, floats)) return RG_BAD_TENSOR;
  if (c.k.type == RG_INT8 && !fits(c.k_scale, c.batch, c.kv_heads, c.keys, 1, 1 << RG_FLOAT32)) return RG_BAD_TENSOR;
  if (c.v.type == RG_INT8 && !fits(c.v_scale, c.batch, c.kv_heads, c.keys, 1, 1 << RG_FLOAT32)) return RG_BAD_TENSOR;
  if (!(c.dropout >= 0 && c.dropout <= 1) || (c.dropout > 0 && !c.start)) return RG_BAD_OPTIONS;
  if (c.statistics && !fits(*c.statistics, c)) return RG_BAD_OPTIONS;
  return c.bias.data && !fits(c.bias, c) ? RG_BAD_TENSOR : RG_OK;
}

int check_gradients(const rg_call &c, const rg_gradients *g) {
  if (!g || !c.log_sum_exp) return RG_BAD_OPTIONS;
  const int floats = float_types(c), wide = c.q.type == RG_FLOAT64 ? floats : 1 << RG_FLOAT32;
  const bool sound = fits(g->dout, c.batch, c.heads, c.q_len, c.v_dim, floats) &&
                     fits(g->dq, c.batch, c.heads, c.q_len, c.head_dim, wide) &&
                     fits(g->dk, c.batch, c.kv_heads, c.keys, c.head_dim, wide) &&
                     fits(g->dv, c.batch, c.kv_heads, c.keys, c.v_dim, wide);
  if (!sound) return RG_BAD_TENSOR;
  if (g->dbias.data && (!c.bias.data || !fits(g->dbias, c.batch, c.heads, c.q_len, c.keys, wide))) return RG_BAD_TENSOR;
  if (!g->dtable.data) return RG_OK;
  if (!c.bias.data || c.bias.row != -1 || c.bias.key != 1) return RG_BAD_OPTIONS;
  const int64_t width = g->dtable.head;  // tables of the heads of a batch row follow each other
  for (int b = 0; b < c.batch; b++)
    if (c.bias.at[b] + c.keys > width || c.bias.at[b] - c.q_len + 1 < 0) return RG_BAD_TENSOR;
  return fits(g->dtable, c.batch, c.heads, 1, width, wide) ? RG_OK : RG_BAD_TENSOR;
}

bool fits_or_none(const rg_tensor &x, int64_t batch, int64_t heads, int64_t rows, int64_t dim, int types) {
  return !x.data || fits(x, batch, heads, rows, dim, types);
}

int check(const rg_recurrence *call) {
  if (!call) return RG_BAD_OPTIONS;
  const rg_recurrence &c = *call;
  if (instructions() == NONE) return RG_NO_KERNEL;
  const int32_t sizes[] = {c.batch, c.heads, c.key_heads, c.kv_heads, c.length, c.head_dim, c.v_dim};
  for (int32_t size : sizes)
    if (size < 1) return RG_BAD_SIZES;
  const int32_t out = c.heads > c.kv_heads ? c.heads : c.kv_heads;
  if (c.kv_heads % c.key_heads || out % c.heads || out % c.kv_heads) return RG_BAD_SIZES;
  if (c.key_heads < c.kv_heads && c.heads != c.key_heads) return RG_BAD_SIZES;
  if (c.head_dim > 1 << 12 || c.v_dim > 1 << 12 || c.length > INT32_MAX - RG_CHUNK) return RG_BAD_SIZES;
  if (c.threads < 1 || c.decays < 0 || c.decays > 2 || !c.before || !c.after) return RG_BAD_OPTIONS;
  if (!(c.unit >= 0) || (c.unit > 0 && c.kept)) return RG_BAD_OPTIONS;
  const bool by_key = c.decays > 0, wide = c.q.type == RG_FLOAT64;
  const int floats = wide ? 1 << RG_FLOAT64 : 1 << RG_FLOAT32 | 1 << RG_BFLOAT16 | 1 << RG_FLOAT16;
  const int real = 1 << (wide ? RG_FLOAT64 : RG_FLOAT32);
  const bool sound = fits(c.q, c.batch, c.heads, c.length, c.head_dim, floats) &&
                     fits(c.k, c.batch, c.key_heads, c.length, c.head_dim, floats) &&
                     fits(c.v, c.batch, c.kv_heads, c.length, c.v_dim, floats) &&
                     fits(c.out, c.batch, out, c.length, c.v_dim, floats) &&
                     (!by_key || fits(c.log_decay, c.batch, c.kv_heads, c.length, c.decays == 2 ? c.head_dim : 1, real)) &&
                     fits_or_none(c.strength, c.batch, c.kv_heads, c.length, 1, real);
  return sound ? RG_OK : RG_BAD_TENSOR;
}

int check_gradients(const rg_recurrence &c, const rg_recurrence_gradients *g) {
  if (!g || !g->dbefore || !c.kept || (c.delta && !c.solved)) return RG_BAD_OPTIONS;
  const int32_t out = c.heads > c.kv_heads ? c.heads : c.kv_heads;
  const int real = 1 << (c.q.type == RG_FLOAT64 ? RG_FLOAT64 : RG_FLOAT32);
  const bool sound = fits_or_none(g->dout, c.batch, out, c.length, c.v_dim, real) &&
                     fits(g->dq, c.batch, c.heads, c.length, c.head_dim, real) &&
                     fits(g->dk, c.batch, c.key_heads, c.length, c.head_dim, real) &&
                     fits(g->dv, c.batch, c.kv_heads, c.length, c.v_dim, real) &&
                     fits_or_none(g->dlog_decay, c.batch, c.kv_heads, c.length, c.decays == 2 ? c.head_dim : 1, real) &&
                     fits_or_none(g->dstrength, c.batch, c.kv_heads, c.length, 1, real);
  return sound && (c.decays || !g->dlog_decay.data) ? RG_OK : RG_BAD_TENSOR;
}

bool near(int64_t x) { return -(INT64_C(1) << 62) < x && x < INT64_C(1) << 62; }

bool fits(const rg_visible &x) {
  if (x.rows < 1 || x.heads < 1 || x.q_len < 1 || x.keys < 1 || x.words < 0 || x.q_len > INT32_MAX - RG_MOST_ROWS) return false;
  if (!x.position || !x.schedule || !x.block || !x.run || !x.lo || !x.hi || (x.words && !x.bits)) return false;
  const int64_t strides[] = {x.start_row, x.stop_row, x.position_row}, most = INT64_C(1) << 40;
  for (int64_t stride : strides)
    if (stride != 0 && stride != 1) return false;
  int64_t last = 0;
  const int64_t steps[] = {x.mask_row, x.mask_head, x.mask_query, x.mask_key};
  const int64_t counts[] = {x.rows, x.heads, x.q_len, x.keys};
  for (int i = 0; i < 4; i++) {
    if (steps[i] < 0 || steps[i] > most) return false;
    last += steps[i] * (counts[i] - 1);
    if (x.mask && last >= x.mask_size) return false;
  }
  for (int32_t row = 0; row < x.rows; row++)
    if (!near(x.position[row * x.position_row])) return false;
  return (x.left == RG_NO_LIMIT || near(x.left)) && (x.right == RG_NO_LIMIT || near(x.right));
}

rg_recurrence alone(const rg_recurrence &c) {
  rg_recurrence own = c;
  if (forked) own.threads = 1;
  return own;
}
}  // namespace

#ifndef RG_SOURCES
#define RG_SOURCES "unknown"
#endif

// Destructors of a thread's memory are registered with the C library directly. The compilers' function for it would bring
// their whole library along, and with it a need for the newest C library.
#if defined(__GLIBC__)
extern "C" int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern "C" int __cxa_thread_atexit(void (*destroy)(void *), void *object, void *library) {
  return __cxa_thread_atexit_impl(destroy, object, library);
}
#endif

extern "C" void rg_in_threads(int threads, void (*work)(void *), void *data) {
  threads > 1 && HAS_THREADS ? run_in_threads(threads, work, data) : work(data);
}

int32_t check_call(const rg_call *c) { return check(c); }
void in_threads(int32_t threads, void (*work)(void *), void *data) { rg_in_threads(forked ? 1 : threads, work, data); }
bool has_kernel() { return instructions() != NONE; }

#define PUBLIC __attribute__((visibility("default")))
extern "C" {
PUBLIC int32_t rg_version(void) { return RG_VERSION; }
PUBLIC const char *rg_sources(void) { return RG_SOURCES; }
PUBLIC void rg_sizes(int32_t sizes[14]) {
  sizes[0] = sizeof(rg_schedule), sizes[1] = sizeof(rg_tensor), sizes[2] = sizeof(rg_bias);
  sizes[3] = sizeof(rg_call), sizes[4] = sizeof(rg_gradients), sizes[5] = sizeof(rg_statistics);
  sizes[6] = sizeof(rg_recurrence), sizes[7] = sizeof(rg_recurrence_gradients);
  sizes[8] = sizeof(rg_lists), sizes[9] = sizeof(rg_visible);
  sizes[10] = sizeof(rg_operation), sizes[11] = sizeof(rg_program), sizes[12] = sizeof(rg_writing);
  sizes[13] = sizeof(rg_windows);
}
PUBLIC void rg_use_threads(void *function) { __atomic_store_n(&given_parallel, (decltype(&GOMP_parallel))function, __ATOMIC_RELAXED); }
PUBLIC int32_t rg_has_threads(void) { return HAS_THREADS; }
PUBLIC int32_t rg_instructions(void) { return instructions(); }
PUBLIC int32_t rg_use_instructions(int32_t wanted) {
  const int most = supported(), found = wanted >= LEAST && wanted < most ? wanted : most;
  __atomic_store_n(&chosen, found, __ATOMIC_RELAXED);
  return found;
}
PUBLIC int64_t rg_lower(const rg_visible *x) { return x && fits(*x) ? visible::write_all(*x) : -1; }
PUBLIC int32_t rg_hides_extreme(const rg_visible *x, const rg_tensor *numbers, int32_t batch, int32_t heads, int32_t dim, double limit) {
  return visible::hides_extreme(*x, *numbers, batch, heads, dim, limit);
}
PUBLIC int32_t rg_forward(const rg_call *c) {
  if (int wrong = check(c)) return wrong;
  if (c->unsound) *c->unsound = 0;
  const rg_call own = alone(*c);
  return KERNEL_FOR(own, forward)(&own);
}
PUBLIC int32_t rg_recur(const rg_recurrence *c) {
  if (int wrong = check(c)) return wrong;
  const rg_recurrence own = alone(*c);
  return KERNEL_FOR(own, recur)(&own);
}
PUBLIC int32_t rg_recur_back(const rg_recurrence *c, const rg_recurrence_gradients *g) {
  if (int wrong = check(c)) return wrong;
  if (int wrong = check_gradients(*c, g)) return wrong;
  const rg_recurrence own = alone(*c);
  if (c->q.type == RG_FLOAT64) return wide::recur_back(&own, g);
  return FLOAT32_KERNEL(recur_back)(&own, g);
}
PUBLIC int32_t rg_backward(const rg_call *c, const rg_gradients *g) {
  if (int wrong = check(c)) return wrong;
  if (int wrong = check_gradients(*c, g)) return wrong;
  const rg_call own = alone(*c);
  return KERNEL_FOR(own, backward)(&own, g);
}
}
