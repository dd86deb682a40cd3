// Calls of `attention` that repeat an earlier one with other tensors: looked up, checked and computed in one function, since
// Python needs as long to do that as the kernel to compute 16 queries. A call that the kernel alone cannot compute, such as one with
// gradients, is only looked up here; a function of Python that was kept for it computes it.
//
// Every function here runs while its thread holds Python's lock, which is given back only while the kernel computes. Between
// a look-up and the kernel other code may run, so a call works on copies: a table entry is never read after Python was asked
// for something.
#include "kept_calls.h"
#include "row_keys.h"

#include <stdlib.h>
#include <string.h>

namespace {
constexpr int TENSORS = 3;
constexpr int CALLS = 256;   // the newest that are kept
constexpr int CHAINS = 512;  // a power of two
constexpr int AXES = 4;
constexpr int MOST_GROWING_ROWS = 16;  // queries of a call whose keys grow

// Which calls a kept call stands for: those with the same number of keys; those with any number of keys in a range whose queries
// look at one window; or those whose queries look at the keys of their batch row.
enum Kind { EQUAL_SIZES, ONE_WINDOW, KEYS_BY_ROW };

// Where these options stand. A call with PARAMETERS, DROPOUT_SEED or SINK is not kept, and one with a bias only as ONE_WINDOW: its
// numbers are read in each call, and the class torch.Tensor stands for it among the options that are compared.
enum { PATTERN, MECHANISM, BIAS, PARAMETERS, DROPOUT_SEED, SINK, Q_START };
constexpr int MOST_BATCH_OF_BIAS = 64;  // batch rows of a call with a bias

// How three tensors lie, without their addresses, and which of them want gradients: a bit for each. Layouts are compared byte
// by byte, so there is no number between or behind these.
struct Layout {
  int64_t size[TENSORS][AXES], stride[TENSORS][AXES];
  uint32_t type[TENSORS];
  uint32_t gradients;
};

struct Kept {
  Kept *next;
  uint64_t hash;
  Layout layout;
  rg_object *option[RG_OPTIONS];
  rg_object *function;     // of Python, which computes the call; NULL: the kernel does
  rg_object *memory;
  rg_object *output_layout, *output_keywords;
  rg_call call;
  int32_t most_threads, must_be_sound;
  int64_t first[TENSORS];  // bytes
  Kind kind;
  rg_growth growth;        // of the last two kinds
};

Kept *chains[CHAINS];
Kept *ring[CALLS];
int oldest;
uint64_t changes;  // of the table

// Which of the three tensors want gradients.
uint32_t gradients_of(rg_object *const *arguments) {
  uint32_t found = 0;
  if (says_something(py.PyObject_CallNoArgs(py.is_grad_enabled)))
    for (int i = 0; i < TENSORS; i++) found |= (uint32_t)is_true(arguments[i], py.requires_grad) << i;
  return found;
}

// Whether these arguments may be those of a kept call; it also keeps tensors without memory from `describe`, whose exceptions
// take a thousand times as long as the call.
bool may_repeat(rg_object *const *arguments) {
  for (int i = 0; i < TENSORS; i++)
    if (class_of(arguments[i]) != py.tensor) return false;
  rg_object *const *option = arguments + TENSORS;
  if (option[BIAS] != py.none && class_of(option[BIAS]) != py.tensor) return false;
  for (int i = PARAMETERS; i <= SINK; i++)
    if (option[i] != py.none) return false;
  if (class_of(option[Q_START]) == py.tensor) return false;
  if (is_seen_by_functions()) return false;
  return is_true(arguments[0], py.is_cpu) && is_quiet();
}

// The first number of a tensor with four axes, and how it lies; NULL for any other.
char *describe_in(Layout &layout, rg_object *x, int place) {
  rg_described found;
  if (!describe(x, found) || found.axes != AXES) return nullptr;
  memcpy(layout.size[place], found.size, sizeof layout.size[place]);
  memcpy(layout.stride[place], found.stride, sizeof layout.stride[place]);
  layout.type[place] = found.code | (uint32_t)found.bits << 8 | (uint32_t)found.lanes << 16;
  return (char *)found.data + found.offset;
}

// How q, k and v of a call lie; false where one of them is no tensor with four axes in memory.
bool describe_all(Layout &layout, rg_object *const *arguments, char **data) {
  layout.gradients = gradients_of(arguments);
  for (int i = 0; i < TENSORS; i++) {
    data[i] = describe_in(layout, arguments[i], i);
    if (!data[i]) return false;
  }
  return true;
}

uint64_t hash_of(const Layout &layout) {
  constexpr int WORDS = sizeof layout / sizeof(uint64_t);
  uint64_t words[WORDS], sum = 0, factor = UINT64_C(0x9E3779B97F4A7C15);
  memcpy(words, &layout, sizeof layout);
  for (uint64_t word : words) {
    sum += word * factor;
    factor += UINT64_C(0xD1B54A32D192ED03) << 1;  // it stays odd
  }
  return sum ^ sum >> 32;
}

// 1 if two options are equal, 0 if not, -1 with an exception that is not for us, such as that of Ctrl-C.
int equal(rg_object *kept, rg_object *given) {
  if (kept == given) return 1;
  if (class_of(kept) != class_of(given)) return 0;  // 1 == 1.0 == True
  shared(kept);  // the comparison of patterns is code of Python, beside which another thread may forget this call
  int answer = py.PyObject_RichCompareBool(kept, given, EQUAL);
  if (answer < 0 && py.PyErr_ExceptionMatches(py.any_exception)) {
    py.PyErr_Clear();
    answer = 0;
  }
  py.Py_DecRef(kept);
  return answer;
}

// A layout without what differs between calls whose keys grow.
Layout without_growth(Layout layout) {
  for (int i = 1; i < TENSORS; i++) {
    layout.size[i][2] = 0;
    layout.stride[i][0] = layout.stride[i][1] = 0;
  }
  return layout;
}

// The kept call of this kind, layout and options; NULL if there is none. `failed`: an exception of Python is set.
Kept *find(Kind kind, const Layout &of_call, rg_object *const *options, bool &failed) {
  failed = false;
  const bool grows = kind != EQUAL_SIZES;
  const int64_t keys = of_call.size[1][2];
  if (grows && keys != of_call.size[2][2]) return nullptr;
  const Layout layout = grows ? without_growth(of_call) : of_call;
  const uint64_t hash = hash_of(layout), before = changes;
  for (Kept *kept = chains[hash % CHAINS]; kept; kept = kept->next) {
    if (kept->hash != hash || kept->kind != kind || memcmp(&kept->layout, &layout, sizeof layout)) continue;
    if (grows && (keys < kept->growth.least_keys || keys > kept->growth.most_keys)) continue;
    int same = 1;
    for (int i = 0; i < RG_OPTIONS && same == 1; i++) {
      if (grows && i == Q_START) continue;
      same = equal(kept->option[i], options[i]);
      failed = same < 0;
      if (failed || changes != before) return nullptr;  // another thread may have freed this entry
    }
    if (same == 1) return kept;
  }
  return nullptr;
}

// The keys of a call whose queries all look at one window: one block of rows and one run of keys.
struct Window {
  rg_schedule schedule;
  int32_t block[4], run[4], lo[MOST_GROWING_ROWS], hi[MOST_GROWING_ROWS];

  void write(rg_call &call, const rg_growth &growth, int64_t position) {
    const int32_t rows = call.q_len, keys = call.keys;
    const int64_t low = within(growth.start, 0, keys), high = within(growth.stop, low, keys);
    for (int32_t row = 0; row < rows; row++) {
      const int64_t at = position + row;
      lo[row] = (int32_t)(growth.left == RG_NO_LIMIT ? low : within(at - growth.left, low, high));
      hi[row] = (int32_t)(growth.right == RG_NO_LIMIT ? high : within(at + growth.right + 1, low, high));
      if (hi[row] < lo[row]) hi[row] = lo[row];
    }
    // Both bounds grow with the row, so these hold the keys of all.
    const int32_t first = lo[0], end = hi[rows - 1];
    const bool all_equal = first == lo[rows - 1] && end == hi[0];
    const int32_t of_block[] = {0, rows, 0, first < end}, of_run[] = {first, end, all_equal ? RG_WHOLE : RG_BOUNDED, 0};
    memcpy(block, of_block, sizeof block);
    memcpy(run, of_run, sizeof run);
    memset(&schedule, 0, sizeof schedule);
    schedule.blocks = schedule.runs = 1;
    schedule.bounds = rows;
    schedule.origin = (int32_t)low;
    schedule.block = block;
    schedule.run = run;
    schedule.lo = lo;
    schedule.hi = hi;
    call.schedules = 1;
    call.schedule = &schedule;
    call.schedule_of = nullptr;
  }

 private:
  static int64_t within(int64_t x, int64_t least, int64_t most) { return x < least ? least : x > most ? most : x; }
};

// Describe k or v of a call whose keys grow. An axis of size 1 may have any stride. Here it gets the size of the
// whole tensor, so that a second entry would lie outside of it.
void describe_growing(rg_tensor &x, const Layout &layout, int place) {
  const int64_t *const size = layout.size[place], *const stride = layout.stride[place];
  x.size = 1;
  for (int axis = 0; axis < AXES; axis++) x.size += stride[axis] * (size[axis] - 1);
  x.batch = size[0] > 1 ? stride[0] : x.size;
  x.head = size[1] > 1 ? stride[1] : x.size;
  x.row = size[2] > 1 ? stride[2] : x.size;
}

// The position of the first query; -1 where it is no integer, negative, or too large.
int64_t position_of(rg_object *q_start, int64_t rows, int64_t keys) {
  constexpr int64_t FAR = INT64_C(1) << 40;
  if (q_start == py.none) return keys - rows < 0 ? -1 : keys - rows;
  if (class_of(q_start) != py.integer) return -1;
  const int64_t position = py.PyLong_AsLong(q_start);
  if (position == -1) py.PyErr_Clear();  // it may be an exception
  return position < 0 || position > FAR ? -1 : position;
}

// Whether a bias wants a gradient, which only Python computes.
bool learns(rg_object *bias) { return says_something(py.PyObject_CallNoArgs(py.is_grad_enabled)) && is_true(bias, py.requires_grad); }

// The bias of one call: numbers (batch or 1, heads or 1, q_len or 1, keys or 1) in the type in which the kernel adds. Those of a
// row whose keys do not lie beside each other are copied, as T5's, which come as (q_len, keys, heads).
class CallBias {
 public:
  CallBias() = default;
  ~CallBias() { free(copy); }
  CallBias(const CallBias &) = delete;
  CallBias &operator=(const CallBias &) = delete;

  // Write it into the call; false for another tensor, or without memory. The tensor and this object live until the call is computed.
  bool read(rg_call &call, rg_object *tensor) {
    constexpr uint8_t FLOAT = 2;  // kDLFloat
    const uint8_t bits = call.q.type == RG_FLOAT64 ? 64 : 32;
    rg_described found;
    if (call.batch > MOST_BATCH_OF_BIAS || !describe(tensor, found) || found.axes != AXES) return false;
    if (found.code != FLOAT || found.bits != bits || found.lanes != 1) return false;
    const int64_t whole[AXES] = {call.batch, call.heads, call.q_len, call.keys};
    int64_t stride[AXES], extent = 1;
    for (int axis = 0; axis < AXES; axis++) {
      if (found.size[axis] != 1 && found.size[axis] != whole[axis]) return false;
      stride[axis] = found.size[axis] > 1 ? found.stride[axis] : 0;
      extent += stride[axis] * (found.size[axis] - 1);
    }
    const char *numbers = (const char *)found.data + found.offset;
    if (stride[3] > 1) {
      numbers = bits == 64 ? copied((const double *)numbers, found.size, stride) : copied((const float *)numbers, found.size, stride);
      if (!numbers) return false;
      extent = dense_strides(found.size, stride);
    }
    for (int32_t row = 0; row < call.batch; row++) first_of_row[row] = row * stride[0];
    call.bias.data = numbers;
    call.bias.at = first_of_row;
    call.bias.head = stride[1];
    call.bias.row = stride[2];
    call.bias.key = stride[3];
    call.bias.size = extent;
    return true;
  }

 private:
  int64_t first_of_row[MOST_BATCH_OF_BIAS];
  void *copy = nullptr;

  // The strides of a tensor without gaps, 0 along an axis of size 1; returns how many numbers it has.
  static int64_t dense_strides(const int64_t *size, int64_t *stride) {
    int64_t count = 1;
    for (int axis = AXES - 1; axis >= 0; axis--) {
      stride[axis] = size[axis] > 1 ? count : 0;
      count *= size[axis];
    }
    return count;
  }

  // The numbers of a tensor without gaps; NULL without memory for them.
  template <class Number>
  const char *copied(const Number *numbers, const int64_t *size, const int64_t *stride) {
    int64_t of_copy[AXES];
    Number *into = (Number *)malloc(dense_strides(size, of_copy) * sizeof(Number));
    copy = into;
    if (!into) return nullptr;
    for (int64_t batch = 0; batch < size[0]; batch++)
      for (int64_t head = 0; head < size[1]; head++)
        for (int64_t row = 0; row < size[2]; row++) {
          const Number *of_row = numbers + batch * stride[0] + head * stride[1] + row * stride[2];
          for (int64_t key = 0; key < size[3]; key++) *into++ = of_row[key * stride[3]];
        }
    return (const char *)copy;
  }
};

// How many threads a call with so many keys is worth.
int32_t worth_threads(const rg_growth &growth, int64_t keys) {
  const int64_t threads = growth.products_per_key * keys / growth.products_per_thread;
  return threads < 1 ? 1 : threads > INT32_MAX ? INT32_MAX : (int32_t)threads;
}

// The output of a kept call by the kernel; None where only Python computes it. `kept` is a copy that only this call uses, and the
// caller holds its memory. `row_keys` belongs to the call's pattern and is read for calls of KEYS_BY_ROW.
rg_object *compute(Kept &kept, rg_object *const *arguments, char *const *data, const Layout &layout, rg_object *row_keys) {
  const bool by_row = kept.kind == KEYS_BY_ROW;
  rg_call &call = kept.call;
  rg_object *const bias = arguments[TENSORS + BIAS];
  CallBias of_call;
  Window window;
  RowSchedules schedules;
  if (kept.kind != EQUAL_SIZES) {
    const int32_t keys = (int32_t)layout.size[1][2];
    const int64_t position = position_of(arguments[TENSORS + Q_START], call.q_len, keys);
    if (position < 0) return shared(py.none);
    call.first_key = 0;
    call.keys = keys;
    describe_growing(call.k, layout, 1);
    describe_growing(call.v, layout, 2);
    kept.most_threads = worth_threads(kept.growth, keys);
    if (by_row) {
      if (!schedules.read(row_keys, call, keys, position, kept.growth.left, kept.growth.right)) return shared(py.none);
    } else {
      window.write(call, kept.growth, position);
    }
  }
  if (bias != py.none && !of_call.read(call, bias)) return shared(py.none);
  call.q.data = data[0] + kept.first[0];
  call.k.data = data[1] + kept.first[1];
  call.v.data = data[2] + kept.first[2];

  const Reference output(py.PyObject_Call(py.empty_strided, kept.output_layout, kept.output_keywords));
  if (!output) return nullptr;
  Layout of_output;
  char *const numbers = class_of(output) == py.tensor ? describe_in(of_output, output, 0) : nullptr;
  if (!numbers) return shared(py.none);

  int32_t unsound = 0;
  call.out.data = numbers;
  call.unsound = &unsound;
  call.threads = threads_of(kept.most_threads);
  void *const state = py.PyEval_SaveThread();
  const bool is_written = !by_row || schedules.write(call);
  const bool is_computed = is_written && rg_forward(&call) == RG_OK;
  py.PyEval_RestoreThread(state);
  return shared(is_computed && !(unsound && kept.must_be_sound) ? output : py.none);
}

// The output of a found call; None where only Python computes it. The call is copied: its entry of the table may be freed
// meanwhile.
rg_object *output_of(const Kept *kept, rg_object *const *arguments, char *const *data, const Layout &layout, rg_object *row_keys) {
  Kept found = *kept;  // asking the tensors may run code of Python
  const Reference function(found.function ? shared(found.function) : nullptr), memory(found.memory ? shared(found.memory) : nullptr);
  rg_object *const tensors[] = {arguments[0], arguments[1], arguments[2], arguments[TENSORS + BIAS]};
  for (rg_object *tensor : tensors)
    if (tensor != py.none && says_something(py.PyObject_CallFunctionObjArgs(py.is_neg, tensor, nullptr))) return shared(py.none);
  if (!function) return compute(found, arguments, data, layout, row_keys);
  rg_object *const *const options = arguments + TENSORS;
  return py.PyObject_CallFunctionObjArgs(function, arguments[0], arguments[1], arguments[2], options[PATTERN], options[Q_START],
                                         nullptr);
}

// The RowKeys of a pattern, or None; NULL with an exception that is not for us, such as that of Ctrl-C.
rg_object *row_keys_of(rg_object *pattern) {
  if (pattern == py.none || class_of(pattern) == py.text) return shared(py.none);
  rg_object *row_keys = py.PyObject_GetAttr(pattern, py.row_keys);
  if (!row_keys && py.PyErr_ExceptionMatches(py.any_exception)) {
    py.PyErr_Clear();
    return shared(py.none);
  }
  return row_keys;
}

// A call whose pattern says by data which keys each batch row may look at: any call of the same structure is repeated.
rg_object *repeat_by_row(rg_object *row_keys, rg_object *const *arguments, char *const *data, const Layout &layout) {
  const Reference structure(py.PyObject_GetAttr(row_keys, py.structure));
  if (!structure) return py.PyErr_Clear(), shared(py.none);
  rg_object *options[RG_OPTIONS];
  memcpy(options, arguments + TENSORS, sizeof options);
  options[PATTERN] = structure;
  bool failed;
  const Kept *kept = find(KEYS_BY_ROW, layout, options, failed);
  if (failed) return nullptr;
  if (!kept) return shared(py.unknown);
  return output_of(kept, arguments, data, layout, row_keys);
}

// A call with a bias, whose queries look at one window.
rg_object *repeat_with_bias(rg_object *const *arguments, char *const *data, const Layout &layout) {
  if (learns(arguments[TENSORS + BIAS])) return shared(py.none);
  rg_object *options[RG_OPTIONS];
  memcpy(options, arguments + TENSORS, sizeof options);
  options[BIAS] = py.tensor;
  bool failed;
  const Kept *kept = find(ONE_WINDOW, layout, options, failed);
  if (failed) return nullptr;
  if (!kept) return shared(py.unknown);
  return output_of(kept, arguments, data, layout, nullptr);
}

rg_object *repeat(rg_object *, rg_object *const *arguments, intptr_t count) {
  if (count != TENSORS + RG_OPTIONS || !may_repeat(arguments)) return shared(py.none);
  Layout layout;
  char *data[TENSORS];
  if (!describe_all(layout, arguments, data)) return shared(py.none);
  rg_object *const *options = arguments + TENSORS;
  const Reference row_keys(row_keys_of(options[PATTERN]));
  if (!row_keys) return nullptr;
  const bool has_bias = options[BIAS] != py.none;
  if (row_keys != py.none) return has_bias ? shared(py.none) : repeat_by_row(row_keys, arguments, data, layout);
  if (has_bias) return repeat_with_bias(arguments, data, layout);

  bool failed;
  const Kept *kept = find(EQUAL_SIZES, layout, options, failed);
  if (!failed && !kept) kept = find(ONE_WINDOW, layout, options, failed);
  if (failed) return nullptr;
  if (!kept) return shared(py.unknown);
  return output_of(kept, arguments, data, layout, nullptr);
}

// Take a call out of the table, then give back what it holds, for which code of Python may run.
void forget(int place) {
  Kept *kept = ring[place];
  if (!kept) return;
  ring[place] = nullptr;
  changes++;
  Kept **link = &chains[kept->hash % CHAINS];
  while (*link != kept) link = &(*link)->next;
  *link = kept->next;
  for (rg_object *option : kept->option) py.Py_DecRef(option);
  if (kept->function) py.Py_DecRef(kept->function);
  if (kept->memory) py.Py_DecRef(kept->memory);
  free(kept);
}
}  // namespace

#define PUBLIC __attribute__((visibility("default")))
extern "C" {
PUBLIC rg_object *rg_repeat(void) { return new_function("repeat", repeat, "The output of a call that repeats a kept one."); }

PUBLIC int32_t rg_keep_call(const rg_kept_call *given) {
  Layout layout;
  char *data[TENSORS];
  if (!given->function == !given->memory || !describe_all(layout, given->argument, data)) return 1;
  const Kind kind = !given->growth ? EQUAL_SIZES : given->keys_by_row ? KEYS_BY_ROW : ONE_WINDOW;
  if (given->growth && given->growth->products_per_thread < 1) return 1;
  if (kind == ONE_WINDOW && given->memory && given->call->q_len > MOST_GROWING_ROWS) return 1;
  Kept *kept = (Kept *)calloc(1, sizeof(Kept));
  if (!kept) return 1;
  kept->kind = kind;
  if (given->growth) kept->growth = *given->growth;
  kept->layout = given->growth ? without_growth(layout) : layout;
  kept->hash = hash_of(kept->layout);
  for (int i = 0; i < RG_OPTIONS; i++) kept->option[i] = shared(given->argument[TENSORS + i]);
  if (given->function) kept->function = shared(given->function);
  if (given->memory) {
    kept->memory = shared(given->memory);
    kept->output_layout = given->layout;
    kept->output_keywords = given->keywords;
    kept->call = *given->call;
    kept->most_threads = given->most_threads;
    kept->must_be_sound = given->must_be_sound;
    kept->first[1] = given->first_key;
    kept->first[2] = given->first_value;
  }
  while (ring[oldest]) forget(oldest);  // another thread may keep a call meanwhile
  ring[oldest] = kept;
  oldest = (oldest + 1) % CALLS;
  changes++;
  Kept *&chain = chains[kept->hash % CHAINS];
  kept->next = chain;
  chain = kept;
  return 0;
}

PUBLIC void rg_forget_calls(void) {
  for (int place = 0; place < CALLS; place++) forget(place);
}
}
