// Functions for Python that compute with a few rows in less time than a call of PyTorch takes: a product with a matrix, the
// log-sum-exp of rows, and the rotation of heads. They return None where PyTorch has to compute, or must see the computation.
#include "few_rows.h"
#include "programs.h"

namespace {
constexpr int64_t PRODUCTS_PER_THREAD = 1 << 20;  // for fewer, waking another thread takes longer
constexpr int64_t MOST_NUMBERS = INT64_C(1) << 40;
constexpr int MOST_AXES = 8;
constexpr uint8_t FLOATING = 2;  // kDLFloat

// Whether these are plain tensors or parameters on the CPU that nothing watches, and no derivative is wanted.
bool may_compute(rg_object *const *tensors, int count) {
  for (int i = 0; i < count; i++)
    if (tensors[i] != py.none && class_of(tensors[i]) != py.tensor && class_of(tensors[i]) != py.parameter) return false;
  if (is_seen_by_functions() || says_something(py.PyObject_CallNoArgs(py.is_grad_enabled))) return false;
  return is_true(tensors[0], py.is_cpu);
}

bool is_negative(rg_object *x) { return says_something(py.PyObject_CallFunctionObjArgs(py.is_neg, x, nullptr)); }

// A tensor of float32 numbers.
struct Numbers {
  rg_described tensor;
  float *data = nullptr;

  bool read(rg_object *object) {
    if (!describe(object, tensor) || tensor.code != FLOATING || tensor.bits != 32 || tensor.lanes != 1 || tensor.axes > MOST_AXES)
      return false;
    data = (float *)((char *)tensor.data + tensor.offset);
    return true;
  }
  int64_t count() const {
    int64_t product = 1;
    for (int axis = 0; axis < tensor.axes; axis++) product *= tensor.size[axis];
    return product;
  }
  bool is_table(int64_t columns, int64_t rows) const {  // whether it has these columns, and at least these rows
    return tensor.axes == 2 && tensor.size[1] == columns && tensor.size[0] >= rows && is_dense();
  }
  bool is_dense() const {  // its numbers follow each other
    int64_t stride = 1;
    for (int axis = tensor.axes - 1; axis >= 0; stride *= tensor.size[axis--])
      if (tensor.size[axis] != 1 && tensor.stride[axis] != stride) return false;
    return true;
  }
};

// A new tensor like x, whose last axis has another size.
rg_object *new_output(rg_object *x, const Numbers &like, int64_t last) {
  rg_object *shape = py.PyTuple_New(like.tensor.axes);
  for (int axis = 0; shape && axis < like.tensor.axes; axis++) {
    rg_object *size = py.PyLong_FromLongLong(axis + 1 < like.tensor.axes ? like.tensor.size[axis] : last);
    if (!size || py.PyTuple_SetItem(shape, axis, size)) return py.Py_DecRef(shape), nullptr;
  }
  if (!shape) return nullptr;
  rg_object *output = py.PyObject_CallFunctionObjArgs(py.new_empty, x, shape, nullptr);
  py.Py_DecRef(shape);
  return output;
}

// The product in parts of whole blocks of outputs, which threads take one after the other.
struct Product {
  rg_operation operation;
  int32_t rows, in, out, parts, next;
  const float *x;
  float *y;

  static void work(void *data) {
    Product &p = *(Product *)data;
    for (;;) {
      const int32_t part = __atomic_fetch_add(&p.next, 1, __ATOMIC_RELAXED);
      if (part >= p.parts) return;
      const int64_t blocks = ((int64_t)p.out + 15) / 16, first = blocks * part / p.parts * 16, end = blocks * (part + 1) / p.parts * 16;
      project_columns(p.operation, p.rows, p.x, p.in, p.y, p.out, (int32_t)first, end < p.out ? (int32_t)end : p.out);
    }
  }
};

// project(x, weight, bias): x weightᵀ + bias of float32 tensors (.., in), (out, in) and (out,) or None.
rg_object *project(rg_object *, rg_object *const *arguments, intptr_t count) {
  if (count != 3 || !may_compute(arguments, 3) || !has_kernel()) return shared(py.none);
  Numbers x, weight, bias;
  if (!x.read(arguments[0]) || x.tensor.axes < 1 || !x.is_dense()) return shared(py.none);
  const int64_t in = x.tensor.size[x.tensor.axes - 1];
  const int64_t rows = in > 0 ? x.count() / in : 0;
  if (rows < 1 || rows > RG_FEW_ROWS) return shared(py.none);
  if (!weight.read(arguments[1]) || weight.tensor.axes != 2 || weight.tensor.size[1] != in || !weight.is_dense()) return shared(py.none);
  const int64_t out = weight.tensor.size[0];
  if (out < 1 || in > INT32_MAX / 2 || out > INT32_MAX / 2 || in * out > MOST_NUMBERS) return shared(py.none);
  const bool has_bias = arguments[2] != py.none;
  if (has_bias && (!bias.read(arguments[2]) || bias.tensor.axes != 1 || bias.tensor.size[0] != out || !bias.is_dense())) return shared(py.none);
  if (!is_quiet()) return shared(py.none);
  for (int i = 0; i < 2 + has_bias; i++)
    if (is_negative(arguments[i])) return shared(py.none);

  rg_object *output = new_output(arguments[0], x, out);
  if (!output) return nullptr;
  Numbers y;
  if (class_of(output) != py.tensor || !y.read(output)) return py.Py_DecRef(output), shared(py.none);
  const int64_t threads = rows * in * out / PRODUCTS_PER_THREAD;
  Product product = {};
  product.operation.weight = weight.data;
  product.operation.bias = has_bias ? bias.data : nullptr;
  product.rows = (int32_t)rows, product.in = (int32_t)in, product.out = (int32_t)out;
  product.parts = threads_of(threads < INT32_MAX ? (int32_t)threads : INT32_MAX);
  product.x = x.data, product.y = y.data;
  // No tensor is freed while the lock is released: the caller holds the arguments, and this function the output.
  void *const state = py.PyEval_SaveThread();
  in_threads(product.parts, Product::work, &product);
  py.PyEval_RestoreThread(state);
  return output;
}

// log_sum_exp(x): log Σ exp of each row of x (rows, numbers), (rows, 1).
rg_object *log_sum_exp(rg_object *, rg_object *const *arguments, intptr_t count) {
  if (count != 1 || !may_compute(arguments, 1) || !has_kernel()) return shared(py.none);
  Numbers x;
  if (!x.read(arguments[0]) || x.tensor.axes != 2 || !x.is_dense()) return shared(py.none);
  const int64_t rows = x.tensor.size[0], numbers = x.tensor.size[1];
  if (rows < 1 || numbers < 1 || x.count() > RG_MOST_SCORES || !is_quiet() || is_negative(arguments[0])) return shared(py.none);
  rg_object *output = new_output(arguments[0], x, 1);
  if (!output) return nullptr;
  Numbers y;
  if (class_of(output) != py.tensor || !y.read(output)) return py.Py_DecRef(output), shared(py.none);
  log_sum_exps(x.data, rows, (int32_t)numbers, y.data);
  return output;
}

// rotate(x, cos, sin, first): row i of the heads x (batch, heads, length, dim) times row first + i of cos, plus the same with
// exchanged halves times sin; cos and sin are (positions, dim).
rg_object *rotate(rg_object *, rg_object *const *arguments, intptr_t count) {
  if (count != 4 || !may_compute(arguments, 3) || class_of(arguments[3]) != py.integer || !has_kernel()) return shared(py.none);
  const int64_t first = py.PyLong_AsLong(arguments[3]);
  if (first == -1) py.PyErr_Clear();
  Numbers x, cos, sin;
  if (!x.read(arguments[0]) || x.tensor.axes != 4 || !cos.read(arguments[1]) || !sin.read(arguments[2])) return shared(py.none);
  const int64_t *const size = x.tensor.size, *const stride = x.tensor.stride;
  const int64_t length = size[2], dim = size[3];
  if (dim < 2 || dim % 2 || x.count() < 1 || x.count() > RG_MOST_ROTATED || (stride[3] != 1)) return shared(py.none);
  if (first < 0 || !cos.is_table(dim, first + length) || !sin.is_table(dim, first + length)) return shared(py.none);
  if (!is_quiet() || is_negative(arguments[0])) return shared(py.none);

  rg_object *output = py.PyObject_CallFunctionObjArgs(py.empty_like, arguments[0], nullptr);
  if (!output) return nullptr;
  Numbers y;
  const bool is_like = class_of(output) == py.tensor && y.read(output) && y.tensor.axes == 4 && y.tensor.stride[3] == 1;
  if (!is_like) return py.Py_DecRef(output), shared(py.none);
  const int64_t *const out_stride = y.tensor.stride;
  for (int64_t b = 0; b < size[0]; b++)
    for (int64_t h = 0; h < size[1]; h++)
      for (int64_t i = 0; i < length; i++) {
        const float *from = x.data + b * stride[0] + h * stride[1] + i * stride[2];
        float *to = y.data + b * out_stride[0] + h * out_stride[1] + i * out_stride[2];
        rotate_head(from, to, (int32_t)dim, cos.data + (first + i) * dim, sin.data + (first + i) * dim);
      }
  return output;
}
}  // namespace

#define PUBLIC __attribute__((visibility("default")))
extern "C" {
PUBLIC rg_object *rg_project(void) { return new_function("project", project, "x weightᵀ + bias of a few rows, or None."); }
PUBLIC rg_object *rg_log_sum_exp(void) { return new_function("log_sum_exp", log_sum_exp, "log Σ exp of each row, or None."); }
PUBLIC rg_object *rg_rotate(void) { return new_function("rotate", rotate, "The heads of a few positions, rotated, or None."); }
}
