// Both passes of a call with gradients, without code of Python between autograd and the kernel.
//
// The caller holds the arguments, and each function the tensors that it makes, so no memory is freed while Python's lock is
// released.
#include "both_passes.h"
#include "row_keys.h"

namespace {
constexpr int AXES = 4;

// The type of numbers as regard_native.h counts them; -1 for any other.
int32_t type_of(const rg_described &x) {
  constexpr uint8_t FLOAT = 2, BFLOAT = 4;  // kDLFloat, kDLBfloat
  if (x.lanes != 1) return -1;
  if (x.code == BFLOAT) return x.bits == 16 ? RG_BFLOAT16 : -1;
  if (x.code != FLOAT) return -1;
  return x.bits == 32 ? RG_FLOAT32 : x.bits == 64 ? RG_FLOAT64 : x.bits == 16 ? RG_FLOAT16 : -1;
}

bool is_plain(rg_object *x) { return class_of(x) == py.tensor || class_of(x) == py.parameter; }

// Read a tensor of these sizes, whose last axis is dense.
bool read(rg_tensor &x, rg_object *tensor, int32_t batch, int32_t heads, int32_t rows, int32_t dim) {
  rg_described found;
  if (!is_plain(tensor) || !describe(tensor, found) || found.axes != AXES) return false;
  const int64_t wanted[AXES] = {batch, heads, rows, dim};
  int64_t extent = 1;
  for (int axis = 0; axis < AXES; axis++) {
    if (found.size[axis] != wanted[axis]) return false;
    extent += found.stride[axis] * (wanted[axis] - 1);
  }
  if (found.stride[3] != 1 && dim > 1) return false;
  x.type = type_of(found);
  if (x.type < 0) return false;
  x.data = (char *)found.data + found.offset;
  x.size = extent;
  // An axis of one number may have any stride. With the extent as its stride, a second number would lie outside.
  x.batch = batch > 1 ? found.stride[0] : extent;
  x.head = heads > 1 ? found.stride[1] : extent;
  x.row = rows > 1 ? found.stride[2] : extent;
  return true;
}

// The first of `count` numbers of this type that lie without gaps; NULL for any other tensor.
void *dense_numbers(rg_object *tensor, int32_t type, int64_t count) {
  rg_described found;
  if (!is_plain(tensor) || !describe(tensor, found) || type_of(found) != type) return nullptr;
  int64_t extent = 1;
  for (int axis = found.axes - 1; axis >= 0; axis--) {
    if (found.size[axis] > 1 && found.stride[axis] != extent) return nullptr;
    extent *= found.size[axis];
  }
  return extent == count ? (char *)found.data + found.offset : nullptr;
}

rg_object *new_tensor(rg_object *layout, const rg_both_passes &given) {
  return py.PyObject_Call(py.empty_strided, layout, given.keywords);
}

// Memory for the gradient of x, in the order of its axes, so that autograd need not copy it.
rg_object *room_for(rg_object *x, const rg_both_passes &given) {
  const Reference arguments(py.PyTuple_New(1));
  if (!arguments) return nullptr;
  py.PyTuple_SetItem(arguments, 0, shared(x));
  return py.PyObject_Call(py.empty_like, arguments, given.keywords);
}

// q, k and v, the keys of batch rows if the call has such, and its threads.
bool read_inputs(rg_call &call, RowSchedules &schedules, const rg_both_passes &given, rg_object *const *qkv, rg_object *row_keys) {
  if (!read(call.q, qkv[0], call.batch, call.heads, call.q_len, call.head_dim)) return false;
  if (!read(call.k, qkv[1], call.batch, call.kv_heads, call.keys, call.head_dim)) return false;
  if (!read(call.v, qkv[2], call.batch, call.kv_heads, call.keys, call.v_dim)) return false;
  if (given.keys_by_row && !schedules.read(row_keys, call, call.keys, given.position, given.left, given.right)) return false;
  call.threads = threads_of(given.most_threads);
  return true;
}

const rg_both_passes *given_by(rg_object *address) {
  if (class_of(address) != py.integer) return nullptr;
  const long place = py.PyLong_AsLong(address);
  if (place == -1) py.PyErr_Clear();
  return place == -1 ? nullptr : (const rg_both_passes *)place;
}

// Of the address, q, k, v and the row keys: the output, log-sum-exp and sums of rows, and whether they are sound.
rg_object *forward_with_sums(rg_object *, rg_object *const *arguments, intptr_t count) {
  if (count != 5) return shared(py.none);
  const rg_both_passes *const given = given_by(arguments[0]);
  if (!given) return shared(py.none);
  rg_call call = *given->call;
  RowSchedules schedules;
  if (!read_inputs(call, schedules, *given, arguments + 1, arguments[4])) return shared(py.none);

  const Reference output(new_tensor(given->output, *given));
  if (!output) return nullptr;
  const Reference log_sum_exp(new_tensor(given->log_sum_exp, *given));
  if (!log_sum_exp) return nullptr;
  const Reference row_sums(new_tensor(given->row_sums, *given));
  if (!row_sums) return nullptr;
  if (!read(call.out, output, call.batch, call.heads, call.q_len, call.v_dim)) return shared(py.none);
  const int64_t rows = (int64_t)call.batch * call.heads * call.q_len;
  call.log_sum_exp = dense_numbers(log_sum_exp, call.out.type, rows);
  call.row_sums = dense_numbers(row_sums, call.out.type, 2 * rows);
  if (!call.log_sum_exp || !call.row_sums) return shared(py.none);

  int32_t unsound = 0;
  call.unsound = &unsound;
  void *const state = py.PyEval_SaveThread();
  const bool is_written = !given->keys_by_row || schedules.write(call);
  const bool is_computed = is_written && rg_forward(&call) == RG_OK;
  const bool hides_extreme = is_computed && given->keys_by_row && schedules.hides_extreme(call, given->limit);
  py.PyEval_RestoreThread(state);
  if (!is_computed) return shared(py.none);

  rg_object *const results = py.PyTuple_New(4);
  if (!results) return nullptr;
  py.PyTuple_SetItem(results, 0, shared(output));
  py.PyTuple_SetItem(results, 1, shared(log_sum_exp));
  py.PyTuple_SetItem(results, 2, shared(row_sums));
  py.PyTuple_SetItem(results, 3, py.PyLong_FromLongLong(!unsound && !hides_extreme));
  return results;
}

// Of the address, q, k, v, output, log-sum-exp, sums of rows, the gradients of output and log-sum-exp, and the row keys: the
// gradients of q, k and v.
rg_object *gradients_of_inputs(rg_object *, rg_object *const *arguments, intptr_t count) {
  if (count != 10) return shared(py.none);
  const rg_both_passes *const given = given_by(arguments[0]);
  if (!given) return shared(py.none);
  rg_call call = *given->call;
  RowSchedules schedules;
  if (!read_inputs(call, schedules, *given, arguments + 1, arguments[9])) return shared(py.none);
  if (!read(call.out, arguments[4], call.batch, call.heads, call.q_len, call.v_dim)) return shared(py.none);
  const int64_t rows = (int64_t)call.batch * call.heads * call.q_len;
  call.log_sum_exp = dense_numbers(arguments[5], call.out.type, rows);
  call.row_sums = dense_numbers(arguments[6], call.out.type, 2 * rows);
  if (!call.log_sum_exp || !call.row_sums) return shared(py.none);

  rg_gradients gradients = {};
  if (!read(gradients.dout, arguments[7], call.batch, call.heads, call.q_len, call.v_dim)) return shared(py.none);
  if (arguments[8] != py.none) {
    gradients.dlog_sum_exp = dense_numbers(arguments[8], call.out.type, rows);
    if (!gradients.dlog_sum_exp) return shared(py.none);
  }
  const Reference dq(room_for(arguments[1], *given));
  if (!dq) return nullptr;
  const Reference dk(room_for(arguments[2], *given));
  if (!dk) return nullptr;
  const Reference dv(room_for(arguments[3], *given));
  if (!dv) return nullptr;
  if (!read(gradients.dq, dq, call.batch, call.heads, call.q_len, call.head_dim)) return shared(py.none);
  if (!read(gradients.dk, dk, call.batch, call.kv_heads, call.keys, call.head_dim)) return shared(py.none);
  if (!read(gradients.dv, dv, call.batch, call.kv_heads, call.keys, call.v_dim)) return shared(py.none);

  void *const state = py.PyEval_SaveThread();
  const bool is_written = !given->keys_by_row || schedules.write(call);
  const bool is_computed = is_written && rg_backward(&call, &gradients) == RG_OK;
  py.PyEval_RestoreThread(state);
  if (!is_computed) return shared(py.none);

  rg_object *const results = py.PyTuple_New(3);
  if (!results) return nullptr;
  py.PyTuple_SetItem(results, 0, shared(dq));
  py.PyTuple_SetItem(results, 1, shared(dk));
  py.PyTuple_SetItem(results, 2, shared(dv));
  return results;
}
}  // namespace

#define PUBLIC __attribute__((visibility("default")))
extern "C" {
PUBLIC rg_object *rg_forward_with_sums(void) {
  return new_function("forward_with_sums", forward_with_sums, "Output and sums of a call with gradients, or None.");
}
PUBLIC rg_object *rg_gradients_of_inputs(void) {
  return new_function("gradients_of_inputs", gradients_of_inputs, "The gradients of q, k and v, or None.");
}
}
