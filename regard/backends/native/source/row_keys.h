// The keys that the queries of each batch row may look at, read from a RowKeys of Python (patterns/row_keys.py), and written as
// the schedules of one call. A new padding mask needs no code of Python.
#pragma once
#include "interpreter.h"

#include <stdlib.h>
#include <string.h>

class RowSchedules {
 public:
  RowSchedules() { memset(&visible, 0, sizeof visible); }
  ~RowSchedules() {
    free(far);
    free(far_bits);
  }
  RowSchedules(const RowSchedules &) = delete;
  RowSchedules &operator=(const RowSchedules &) = delete;

  // Read the numbers and booleans for a call whose first query has this position. They stay where they are, so `row_keys` has to
  // live until `write` is done. False where only Python can tell: they do not fit the call, or are not in this memory.
  bool read(rg_object *row_keys, const rg_call &call, int32_t keys, int64_t first_position, int64_t left, int64_t right) {
    visible.rows = call.batch;
    visible.heads = 1;
    visible.q_len = call.q_len;
    visible.keys = keys;
    visible.left = left;
    visible.right = right;
    position = first_position;
    visible.position = &position;
    if (!read_numbers(row_keys, py.starts, visible.start, visible.start_row)) return false;
    if (!read_numbers(row_keys, py.stops, visible.stop, visible.stop_row)) return false;
    if (!read_mask(row_keys, call.heads)) return false;
    if (!visible.mask_row && !visible.start_row && !visible.stop_row) visible.rows = 1;
    return true;
  }

  // Write the schedules and what a call needs of them; it points into this object then. Needs no lock of Python. False without
  // memory for them.
  bool write(rg_call &call) {
    const int64_t count = (int64_t)visible.rows * visible.heads, blocks = (visible.q_len + RG_ROWS_OF_BITS - 1) / RG_ROWS_OF_BITS;
    const int64_t of_blocks = 4 * blocks * count, of_rows = (int64_t)visible.q_len * count;
    const int64_t numbers = 2 * of_blocks + 2 * of_rows + (int64_t)call.batch * call.heads;
    const int64_t bytes = count * (int64_t)sizeof(rg_schedule) + numbers * (int64_t)sizeof(int32_t);
    void *room = near;
    if (bytes > (int64_t)sizeof near) room = far = malloc(bytes);
    if (!room) return false;

    visible.schedule = (rg_schedule *)room;
    visible.block = (int32_t *)(visible.schedule + count);
    visible.run = visible.block + of_blocks;
    visible.lo = visible.run + of_blocks;
    visible.hi = visible.lo + of_rows;
    int32_t *const schedule_of = visible.hi + of_rows;
    if (!write_schedules()) return false;

    for (int32_t row = 0; row < call.batch; row++)
      for (int32_t head = 0; head < call.heads; head++)
        schedule_of[row * call.heads + head] = (visible.rows > 1 ? row : 0) * visible.heads + (visible.heads > 1 ? head : 0);
    call.schedules = (int32_t)count;
    call.schedule = visible.schedule;
    call.schedule_of = count > 1 ? schedule_of : nullptr;
    return true;
  }

  // Whether a key or value that no query may look at is so large that a gradient of others could be NaN. After `write`.
  bool hides_extreme(const rg_call &call, double limit) const {
    return rg_hides_extreme(&visible, &call.k, call.batch, call.kv_heads, call.head_dim, limit) ||
           rg_hides_extreme(&visible, &call.v, call.batch, call.kv_heads, call.v_dim, limit);
  }

 private:
  static constexpr uint8_t INTEGER = 0, BOOLEAN = 6;  // kDLInt, kDLBool
  static constexpr int64_t MOST_BITS = 1 << 29;       // as in functional/structures.py
  static constexpr int WORDS = 512;

  rg_visible visible;
  int64_t position;
  // Room for the schedules of a small call, and memory for those of a larger one.
  alignas(rg_schedule) char near[8192];
  uint32_t near_bits[WORDS];
  void *far = nullptr, *far_bits = nullptr;

  // One number for all batch rows, or one for each; none where the attribute is None.
  bool read_numbers(rg_object *row_keys, rg_object *name, const int64_t *&first, int64_t &step) {
    const Reference numbers(py.PyObject_GetAttr(row_keys, name));
    if (!numbers) return py.PyErr_Clear(), false;
    if (numbers == py.none) return true;
    rg_described found;
    if (class_of(numbers) != py.tensor || !describe(numbers, found) || found.axes != 1) return false;
    if (found.code != INTEGER || found.bits != 64 || found.lanes != 1) return false;
    if (found.size[0] != 1 && (found.size[0] != visible.rows || found.stride[0] != 1)) return false;
    first = (const int64_t *)((const char *)found.data + found.offset);
    step = found.size[0] > 1;
    return true;
  }

  // The sizes and strides of a mask along batch rows, heads, queries and keys. One of keys alone may come as (keys,) or
  // (batch, keys), since to add its other axes takes Python as long as PyTorch to copy it.
  static bool as_pairs(const rg_described &mask, int64_t *size, int64_t *stride) {
    static constexpr int PLACES[5][4] = {{}, {3}, {0, 3}, {}, {0, 1, 2, 3}};
    if (mask.axes != 1 && mask.axes != 2 && mask.axes != 4) return false;
    for (int axis = 0; axis < mask.axes; axis++) {
      size[PLACES[mask.axes][axis]] = mask.size[axis];
      stride[PLACES[mask.axes][axis]] = mask.stride[axis];
    }
    return true;
  }

  bool read_mask(rg_object *row_keys, int32_t heads) {
    const Reference mask(py.PyObject_GetAttr(row_keys, py.mask));
    if (!mask) return py.PyErr_Clear(), false;
    if (mask == py.none) return true;
    rg_described found;
    if (class_of(mask) != py.tensor || !describe(mask, found)) return false;
    if (found.code != BOOLEAN || found.bits != 8 || found.lanes != 1) return false;
    int64_t size[4] = {1, 1, 1, 1}, stride[4] = {0, 0, 0, 0};
    if (!as_pairs(found, size, stride)) return false;
    const int64_t wanted[] = {visible.rows, heads, visible.q_len};
    int64_t *const steps[] = {&visible.mask_row, &visible.mask_head, &visible.mask_query, &visible.mask_key};
    visible.mask_size = 1;
    for (int axis = 0; axis < 4; axis++) {
      if (axis < 3 ? size[axis] != 1 && size[axis] != wanted[axis] : size[axis] < visible.keys) return false;
      *steps[axis] = size[axis] > 1 ? stride[axis] : 0;
      visible.mask_size += *steps[axis] * (size[axis] - 1);
    }
    visible.mask = (const uint8_t *)found.data + found.offset;
    visible.heads = (int32_t)size[1];
    const bool has_window = visible.left != RG_NO_LIMIT || visible.right != RG_NO_LIMIT;
    if (has_window && size[0] * visible.q_len * visible.keys > MOST_BITS) return false;
    return fits_this_call(row_keys);
  }

  // A mask with a row for each query is for one number of queries and of keys. A window that begins behind the query orders the
  // sums of its rows otherwise.
  bool fits_this_call(rg_object *row_keys) const {
    const Reference of_call(py.PyObject_GetAttr(row_keys, py.of_call));
    if (!of_call) return py.PyErr_Clear(), false;
    if (of_call == py.none) return true;
    if (visible.left < 0) return false;
    const Reference sizes(py.PyTuple_New(2));
    if (!sizes) return py.PyErr_Clear(), false;
    py.PyTuple_SetItem(sizes, 0, py.PyLong_FromLongLong(visible.q_len));
    py.PyTuple_SetItem(sizes, 1, py.PyLong_FromLongLong(visible.keys));
    const int same = py.PyObject_RichCompareBool(of_call, sizes, EQUAL);
    if (same < 0) py.PyErr_Clear();
    return same == 1;
  }

  bool write_schedules() {
    visible.bits = near_bits;
    visible.words = WORDS;
    int64_t words = rg_lower(&visible);
    if (words > WORDS) {
      far_bits = malloc(words * sizeof(uint32_t));
      if (!far_bits) return false;
      visible.bits = (uint32_t *)far_bits;
      visible.words = words;
      words = rg_lower(&visible);
    }
    return words >= 0;
  }
};
